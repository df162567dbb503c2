"""Compare a rank's clock with that of rank 0, and with time stamps of the kernel."""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

#: Seconds within which a time stamp and a reading of the rank's clock count as simultaneous.
CLOSE_S = 0.0005
#: Number of attempts to get such a pair.
TRIES = 20

# Bound here, before a file of the user could replace them.
_utime, _fstat, _memfd_create = os.utime, os.fstat, os.memfd_create


class Stamps:
    """A source of times that the kernel takes, as modification times of a file in memory.

    Their resolution is the kernel's tick, 1 to 10 ms. They stay correct if a user's file replaces
    Python's clocks.
    """

    def __init__(self) -> None:
        self._file = _memfd_create("stamp")

    def now_s(self) -> float:
        """Return the kernel's wall clock in s."""
        _utime(self._file)
        return _fstat(self._file).st_mtime_ns / 1e9

    def with_clock(self, clock: Callable[[], float]) -> tuple[float, float]:
        """Return the kernel's clock and another clock at the same moment, in s.

        On a busy host other processes may run between the two readings. The pair with the shortest
        time between them is returned.
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


#: Number of messages back and forth with which the offset of a clock is bounded.
PINGS = 50


class Clock:
    """Bounds for the offset of this rank's clock to rank 0's, over a whole window."""

    def __init__(self) -> None:
        # A separate group uses sockets whatever the backend is, and does not disturb other groups.
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if several else None
        self._low = -(1 << 62)
        self._high = 1 << 62

    def handshake(self) -> None:
        """Exchange PINGS messages between every rank and rank 0, one rank at a time (4 ms each).

        This is a collective of all ranks. The bounds of several calls are combined.
        """
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
        """Bound the offset of a peer's clock on rank 0, and send the bounds to the peer."""
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
        """Answer rank 0 with this rank's times, and receive the bounds of the offset."""
        ping = torch.zeros(1, dtype=torch.int64)
        for _ in range(PINGS):
            dist.recv(ping, 0, self._group)
            ping[0] = time.time_ns()
            dist.send(ping, 0, self._group)
        bounds = torch.zeros(2, dtype=torch.int64)
        dist.recv(bounds, 0, self._group)
        low, high = bounds.tolist()
        # After the first handshake the bounds only widen: the clock may have drifted in between.
        if self._low > -(1 << 62):
            self._low = min(self._low, low)
            self._high = max(self._high, high)
        else:
            self._low = low
            self._high = high

    @property
    def offset_ns(self) -> int:
        """This rank's clock minus rank 0's in ns: the middle of the bounds."""
        return (self._low + self._high) // 2

    @property
    def half_width_ns(self) -> int:
        """The largest error of ``offset_ns`` in ns."""
        return (self._high - self._low + 1) // 2
