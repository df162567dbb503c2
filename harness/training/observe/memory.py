"""Peak memory of a rank: the allocator of its accelerator, or the process's high-water mark.

A forked rank inherits the agent's high-water mark, so it is reset first and counted from there.
"""

import os
from pathlib import Path

from harness.record import Allocator
from harness.training.accelerator import Accelerator

#: Memory is looked at every so many steps: that costs more than all else that is noted, most of it
#: where an allocator makes a table of all it knows.
_EVERY = 2
_EVERY_ON_DEVICE = 16
#: So many looks show a slope; a longer window asks for no more.
LOOKS = 10
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.every = _EVERY_ON_DEVICE if accelerator.present else _EVERY
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        if accelerator.present:
            accelerator.forget_peak()
            self._base: int | None = 0
        else:
            try:
                Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
                self._base = self.now()
            except OSError:
                self._base = None

    def spread(self, num_kept: int) -> None:
        """Look as rarely as gives ``LOOKS`` in so many steps."""
        self.every = max(self.every, num_kept // LOOKS)

    def settle(self) -> None:
        """Forget the peak of construction: from here on only what training needs counts."""
        if self._accelerator.present:
            self._accelerator.forget_peak()
        elif self._base is not None:
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")

    def now(self) -> int:
        """Bytes in use: allocated on the device, or resident (10 us)."""
        if self._accelerator.present:
            return self._accelerator.allocated()
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE

    def peak(self) -> int | None:
        """Most bytes above the start since ``settle``; None where it cannot be counted."""
        if self._base is None:
            return None
        if self._accelerator.present:
            return self._accelerator.peak()
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return max(0, int(line.split()[1]) * 1024 - self._base)
        return None

    def allocator(self) -> Allocator | None:
        """The device allocator's peaks since ``settle``; None on CPU, which has none."""
        return self._accelerator.allocator()
