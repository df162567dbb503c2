"""Heartbeats of the ranks: the phase, step and time of each rank, in a small shared file."""

import mmap
import struct
import time
from enum import IntEnum
from pathlib import Path

_SLOT = struct.Struct("<IId")


class Phase(IntEnum):
    """The phase of a launch that a rank is in; each phase has its own deadline."""

    START = 0
    GROUP = 1
    BUILD = 2
    GATE = 3
    WARMUP = 4
    STEADY = 5
    FINISH = 6
    DONE = 7


class Beats:
    """A memory-mapped file with an entry (phase, step, monotonic seconds) for each rank."""

    def __init__(self, path: Path, world_size: int, *, create: bool = False) -> None:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                b"".join(_SLOT.pack(0, 0, time.monotonic()) for _ in range(world_size))
            )
        self.path = path
        with path.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), world_size * _SLOT.size)

    def write(self, rank: int, phase: Phase, step: int = 0) -> None:
        """Write the heartbeat of a rank. The rank itself calls this; it takes about a microsecond.

        The entry is written as one copy of 16 aligned bytes. Packing in place would write byte by
        byte. A rank that loses its core meanwhile would then leave bytes of two heartbeats.
        """
        start = rank * _SLOT.size
        self._map[start : start + _SLOT.size] = _SLOT.pack(phase, step, time.monotonic())

    def read(self, rank: int) -> tuple[Phase, int, float]:
        """Return the phase and step of a rank, and the seconds since its last heartbeat."""
        stamp, again = self._slot(rank), self._slot(rank)
        while stamp != again:  # a read during a write can mix two values, so read until two agree
            stamp = again
            again = self._slot(rank)
        phase, step, at = _SLOT.unpack(stamp)
        return Phase(phase), step, max(0.0, time.monotonic() - at)

    def _slot(self, rank: int) -> bytes:
        return self._map[rank * _SLOT.size : (rank + 1) * _SLOT.size]
