"""Measure the peak memory of a rank.

On an accelerator the allocator reports the peak. On a CPU the peak is the high-water mark of the
process. A forked rank inherits the agent's high-water mark. The mark is therefore reset first, and
the memory in use at that time is subtracted.
"""

import os
from pathlib import Path

from harness.record import Allocator
from harness.training.accelerator import Accelerator

#: Number of steps between two readings of the memory. A reading costs more than all other recording
#: in a step. It costs most on a device, where the allocator makes a table of all its statistics.
_EVERY = 2
_EVERY_ON_DEVICE = 16
#: Number of readings in a window that suffice to see a slope. In a longer window, readings are
#: farther apart.
LOOKS = 10
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The memory of a rank, now and at its peak.

    ``every`` is the number of steps between two readings.
    """

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
        """Reduce the number of readings to about ``LOOKS`` in a window of ``num_kept`` steps."""
        self.every = max(self.every, num_kept // LOOKS)

    def settle(self) -> None:
        """Reset the peak, so that it does not cover the construction of the model."""
        if self._accelerator.present:
            self._accelerator.forget_peak()
        elif self._base is not None:
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")

    def now(self) -> int:
        """Return the bytes that are allocated on the device, or resident on a CPU (takes 10 us)."""
        if self._accelerator.present:
            return self._accelerator.allocated()
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE

    def peak(self) -> int | None:
        """Return the peak in bytes since ``settle``, minus the memory in use at the start.

        Return None if the peak cannot be measured.
        """
        if self._base is None:
            return None
        if self._accelerator.present:
            return self._accelerator.peak()
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return max(0, int(line.split()[1]) * 1024 - self._base)
        return None

    def allocator(self) -> Allocator | None:
        """Return the peaks of the device's allocator since ``settle``, or None on a CPU."""
        return self._accelerator.allocator()
