"""The profiled part of a window: torch.profiler over its last steps, our spans beside it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from torch.profiler import profile, schedule

from harness.base.documents import to_doc
from harness.record.store import write_text
from harness.training.accelerator import Accelerator
from harness.training.observe import loops, spans

#: Steps of the warm-up whose allocations are followed: the first makes what stays.
MEMORY_STEPS = 2


class Allocations:
    """Follows the allocations of the first steps on a device, and leaves them in a file.

    Following them slows a step too much for timing, so only steps of the warm-up are followed.
    """

    def __init__(self, accelerator: Accelerator, file: Path) -> None:
        self._accelerator = accelerator
        self._file = file
        self._done = 0
        accelerator.follow_memory()

    def step(self) -> None:
        self._done += 1
        if self._done == MEMORY_STEPS:
            self._accelerator.leave_memory(self._file)


class Profiler:
    """Profiles the last ``active`` of ``steps`` steps, after one that only warms it up."""

    def __init__(self, steps: int, active: int, accelerator: Accelerator) -> None:
        self._first = steps - active
        self._done = 0
        self._profile = profile(
            activities=accelerator.activities,
            schedule=schedule(wait=self._first - 1, warmup=1, active=active),
            record_shapes=True,
            profile_memory=accelerator.present,
            on_trace_ready=lambda _: spans.profile(False),
        )
        self._profile.start()

    def step(self) -> None:
        self._done += 1
        self._profile.step()
        if self._done == self._first:
            spans.profile(True)
            loops.tell()

    def stop(self) -> None:
        self._profile.stop()

    def export(self, file: Callable[[str], Path]) -> str:
        """Leave trace and spans in the files that ``file`` names; the trace's sha256."""
        trace = file("trace.json.gz")
        self._profile.export_chrome_trace(str(trace))
        write_text(file("spans.json"), json.dumps(to_doc(tuple(spans.logged()))))
        return hashlib.sha256(trace.read_bytes()).hexdigest()
