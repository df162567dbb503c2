"""The kernel's counts of a rank over the kept window, read at its two ends."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import process_time

from harness.host import cores, machine
from harness.host.cores import RunQueue
from harness.training.observe import beside, sockets
from harness.training.observe.stamps import Stamps


@dataclass(frozen=True, kw_only=True)
class MeterReading:
    """Counters at one moment, or what they grew by; None where the kernel does not say.

    ``kernel_s`` and ``own_s`` are the kernel's clock and the rank's at that moment.
    """

    kernel_s: float
    own_s: float
    cpu_s: float
    busy_s: float | None
    throttled_s: float | None
    written_bytes: int | None
    wire: sockets.Wire | None
    queue: RunQueue | None = None
    waited_s: float | None = None


class Meter:
    """Reads at ``start``, at ``stop``, and once more when all that was sent is acknowledged.

    ``clock`` is the one that times the window, in s; ``helpers`` are processes that work for this
    one, as it does.
    """

    def __init__(
        self, clock: Callable[[], float], helpers: Callable[[], Sequence[int]] = tuple
    ) -> None:
        self._helpers = helpers
        self._cores = os.sched_getaffinity(0)
        self._stamps = Stamps()
        self._clock = clock
        self._printed = beside.printed()
        self._before = self._at_end = self.start()

    def start(self) -> MeterReading:
        """The kept window begins; also its own warm-up."""
        wire = sockets.read()
        written = beside.written_bytes()
        self._printed = beside.printed()
        self._before = replace(self._now(), wire=wire, written_bytes=written)
        return self._before

    def stop(self) -> None:
        """The last step is over."""
        self._at_end = self._now()

    def grown(self) -> MeterReading:
        """The growth of the counts in between; bytes up to now."""
        before = self._before
        end = self._at_end
        wire = sockets.read()
        written = beside.written_bytes()
        return MeterReading(
            kernel_s=end.kernel_s - before.kernel_s,
            own_s=end.own_s - before.own_s,
            cpu_s=end.cpu_s - before.cpu_s,
            waited_s=cores.waited(before.queue, end.queue, end.cpu_s - before.cpu_s),
            busy_s=_since(before.busy_s, end.busy_s),
            throttled_s=_since(before.throttled_s, end.throttled_s),
            written_bytes=None
            if written is None or before.written_bytes is None
            else written - before.written_bytes - beside.repeated_bytes(self._printed),
            wire=None if wire is None or before.wire is None else wire.since(before.wire),
        )

    def _now(self) -> MeterReading:
        kernel_s, own_s = self._stamps.with_clock(self._clock)
        return MeterReading(
            queue=cores.read(),
            busy_s=machine.busy_s(self._cores),
            throttled_s=cores.throttled_s(),
            cpu_s=process_time() + beside.helpers_cpu_s(self._helpers()),
            kernel_s=kernel_s,
            own_s=own_s,
            written_bytes=None,
            wire=None,
        )


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
