"""Peak memory of a rank: the device's allocator on CUDA, the process's high-water mark on CPU.

A forked rank inherits the agent's high-water mark, so it is reset first and counted from there.
"""

import os
from pathlib import Path

import torch

from harness.record import Allocator

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._base: int | None = 0
        else:
            try:
                Path("/proc/self/clear_refs").write_text("5")
                self._base = self.now()
            except OSError:
                self._base = None

    def settle(self) -> None:
        """Forget the peak of construction: from here on only what training needs counts."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self._base is not None:
            Path("/proc/self/clear_refs").write_text("5")

    def now(self) -> int:
        """Bytes in use: allocated on the device, or resident (10 us)."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE

    def peak(self) -> int | None:
        """Most bytes above the start since ``settle``; None where it cannot be counted."""
        if self._base is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return max(0, int(line.split()[1]) * 1024 - self._base)
        return None

    def allocator(self) -> Allocator | None:
        """The device allocator's peaks since ``settle``; None on CPU, which has none."""
        if self.device.type != "cuda":
            return None
        stats = torch.cuda.memory_stats(self.device)
        return Allocator(
            allocated_bytes=stats["allocated_bytes.all.peak"],
            reserved_bytes=stats["reserved_bytes.all.peak"],
            inactive_split_bytes=stats["inactive_split_bytes.all.peak"],
            num_retries=stats["num_alloc_retries"],
        )
