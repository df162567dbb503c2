"""Compare a rank's clock with that of rank 0, and with time stamps of the kernel."""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

#: A time stamp of the kernel and a reading of the rank's clock are treated as simultaneous if they
#: are at most this many seconds apart.
CLOSE_S = 0.0005
#: Largest number of attempts to read both clocks within this time.
TRIES = 20

# These are bound here, before a user's file can replace them.
_utime, _fstat, _memfd_create = os.utime, os.fstat, os.memfd_create


class Stamps:
    """A source of the kernel's time, read as the modification time of a file in memory.

    Its resolution is the kernel's tick, 1 to 10 ms. It remains correct if a user's file replaces
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


#: Number of round trips that are used to bound the offset of a clock.
PINGS = 50


class Clock:
    """Bounds for the offset between this rank's clock and rank 0's clock, over a whole window."""

    def __init__(self) -> None:
        # A separate group uses sockets with any backend, and does not disturb other groups.
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if several else None
        self._low = -(1 << 62)
        self._high = 1 << 62

    def handshake(self) -> None:
        """Exchange ``PINGS`` messages between every rank and rank 0, which takes 4 ms per rank.

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
        """On rank 0: bound the offset of a peer's clock, and send the bounds to the peer."""
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
        """Send this rank's times to rank 0, and receive the bounds of the offset."""
        ping = torch.zeros(1, dtype=torch.int64)
        for _ in range(PINGS):
            dist.recv(ping, 0, self._group)
            ping[0] = time.time_ns()
            dist.send(ping, 0, self._group)
        bounds = torch.zeros(2, dtype=torch.int64)
        dist.recv(bounds, 0, self._group)
        low, high = bounds.tolist()
        # The first handshake sets the bounds. Later ones only widen them, because the clock may
        # have drifted.
        if self._low > -(1 << 62):
            self._low = min(self._low, low)
            self._high = max(self._high, high)
        else:
            self._low = low
            self._high = high

    @property
    def offset_ns(self) -> int:
        """This rank's clock minus rank 0's clock in ns, estimated as the middle of the bounds."""
        return (self._low + self._high) // 2

    @property
    def half_width_ns(self) -> int:
        """The largest error of ``offset_ns`` in ns."""
        return (self._high - self._low + 1) // 2
