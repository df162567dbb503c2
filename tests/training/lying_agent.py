"""An agent whose torch, built for CUDA, reports eight GPUs although there are none.

Ranks of CPU cases must not use these; ``tests/strict`` has a simulated device.
"""

from __future__ import annotations

import os
import sys

import torch


def seen() -> bool:
    """Return whether a driver would show devices to this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != ""


torch.cuda.is_available = seen
torch.accelerator.is_available = seen
torch.cuda.device_count = torch.accelerator.device_count = lambda: 8 if seen() else 0
torch._C._get_accelerator = lambda *a, **k: torch.device("cuda")  # what it was compiled for

from harness.training.agent import agent  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(agent.main(sys.argv[1:]))
