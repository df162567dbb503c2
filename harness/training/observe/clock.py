"""The clock of a rank: its offset to rank 0, and time stamps of the kernel."""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

#: A stamp and a reading of the rank's clock this close are one moment; so often it is tried.
CLOSE_S = 0.0005
TRIES = 20

# Bound here, before any file of a user's is imported.
_utime, _fstat, _memfd_create = os.utime, os.fstat, os.memfd_create


class Stamps:
    """The kernel stamps the file; it knows the time to its tick, 1 to 10 ms."""

    def __init__(self) -> None:
        self._file = _memfd_create("stamp")

    def now_s(self) -> float:
        """The kernel's wall clock, in s."""
        _utime(self._file)
        return _fstat(self._file).st_mtime_ns / 1e9

    def with_clock(self, clock: Callable[[], float]) -> tuple[float, float]:
        """The kernel's clock and another one at the same moment, in s.

        On a busy host others run between the two readings: the closest of some tries is taken.
        """
        closest = float("inf")
        nearest = (0.0, 0.0)
        for _ in range(TRIES):
            before = clock()
            stamp = self.now_s()
            apart = clock() - before
            if apart < closest:
                closest = apart
                nearest = (stamp, before + apart / 2)
            if apart < CLOSE_S:
                break
        return nearest


PINGS = 50


class Clock:
    """Bounds the offset of this rank's clock to rank 0's, before and after a window."""

    def __init__(self) -> None:
        # A group of its own: over sockets whatever the backend, and not in the way of any other.
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if several else None
        self._low = -(1 << 62)
        self._high = 1 << 62

    def handshake(self) -> None:
        """PINGS ping-pongs of every rank with rank 0, one rank after another (4 ms each)."""
        if self._group is None:
            self._low = self._high = 0
            return
        for peer in range(1, dist.get_world_size()):
            if dist.get_rank() == 0:
                self._serve(peer)
            elif dist.get_rank() == peer:
                self._answer()
        if dist.get_rank() == 0:
            self._low = self._high = 0

    def _serve(self, peer: int) -> None:
        bounds = torch.tensor([-(1 << 62), 1 << 62])
        pong = torch.zeros(1, dtype=torch.int64)
        for _ in range(PINGS):
            began = time.time_ns()
            dist.send(pong, peer, self._group)
            dist.recv(pong, peer, self._group)
            ended = time.time_ns()
            stamped = int(pong)
            bounds[0] = max(int(bounds[0]), stamped - ended)
            bounds[1] = min(int(bounds[1]), stamped - began)
        dist.send(bounds, peer, self._group)

    def _answer(self) -> None:
        ping = torch.zeros(1, dtype=torch.int64)
        for _ in range(PINGS):
            dist.recv(ping, 0, self._group)
            ping[0] = time.time_ns()
            dist.send(ping, 0, self._group)
        bounds = torch.zeros(2, dtype=torch.int64)
        dist.recv(bounds, 0, self._group)
        low, high = bounds.tolist()
        if self._low > -(1 << 62):  # seen before: whatever lies between is possible by drift
            self._low = min(self._low, low)
            self._high = max(self._high, high)
        else:
            self._low = low
            self._high = high

    @property
    def offset_ns(self) -> int:
        """This clock minus rank 0's, the middle of what is possible."""
        return (self._low + self._high) // 2

    @property
    def half_width_ns(self) -> int:
        """The offset is known to this."""
        return (self._high - self._low + 1) // 2
