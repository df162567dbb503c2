"""An agent whose torch was built for CUDA: it says that eight GPUs are here, and none is.

python lying_agent.py fake ...   ranks of CUDA cases train on a stand-in for a GPU
python lying_agent.py hidden ... ranks of CPU cases must not touch what torch says is there
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch


def seen() -> bool:
    """Whether a driver would show devices to this process."""
    return sys.argv[1:2] != ["fake"] and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


torch.cuda.is_available = seen
torch.accelerator.is_available = seen
torch.cuda.device_count = torch.accelerator.device_count = lambda: 8 if seen() else 0
torch._C._get_accelerator = lambda *a, **k: torch.device("cuda")  # what it was compiled for

from harness.host.accelerators import Accelerators  # noqa: E402
from harness.training.accelerator import Accelerator  # noqa: E402
from harness.training.agent import agent  # noqa: E402
from harness.training.rank import ceiling, setup  # noqa: E402
from harness.training.rank.tasks import gate  # noqa: E402

ceiling.ROWS, ceiling.COPIED = (256, 256), (1 << 20, 1 << 20)  # a GPU's would take a core a minute


class Mark:
    """An event of a queue that is always empty."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: Mark) -> float:
        return 1e3 * (other.at - self.at)


class Fake(Accelerator):
    """Says that it is there, and computes on the host."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda", "only ranks of CUDA cases come here"
        super().__init__(torch.device("cpu"))
        self.present, self.number, self.synchronized = True, device.index, 0

    def select(self) -> None:
        assert 0 <= (self.number or 0) < 8

    def repeatable(self) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)

    @property
    def name(self) -> str:
        return f"Fake {self.number}"

    def synchronize(self) -> None:
        self.synchronized += 1

    def events(self, count: int) -> list[Any]:
        return [Mark() for _ in range(count)]

    def forget_peak(self) -> None:
        return None

    def allocated(self) -> int:
        return 1 << 20

    def peak(self) -> int:
        return 1 << 21

    def allocator(self) -> None:
        return None

    def follow_memory(self) -> None:
        self.follows = True

    def leave_memory(self, path: Path) -> None:
        assert self.follows
        path.write_text(str(time.time_ns()))


if __name__ == "__main__":
    if sys.argv[1] == "fake":
        agent.usable = lambda: Accelerators(build="cuda 13.0", names=("Fake",) * 8)
        setup.Accelerator = gate.Accelerator = Fake  # type: ignore[misc]
    raise SystemExit(agent.main(sys.argv[2:]))
