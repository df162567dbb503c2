"""What the kernel counted of a rank over the kept window, read at its two ends."""

import os
from dataclasses import dataclass, replace
from time import process_time

from harness.host import cgroup, machine
from harness.training.observe import beside, sockets
from harness.training.observe.stamps import Stamps


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters at one moment, or what they grew by; None where the kernel does not say."""

    kernel_s: float
    cpu_s: float
    busy_s: float | None
    throttled_s: float | None
    written_bytes: int | None
    wire: sockets.Wire | None


class Meter:
    """Reads at ``start``, at ``stop``, and once more when all that was sent is acknowledged."""

    def __init__(self) -> None:
        self._cores, self._stamps = os.sched_getaffinity(0), Stamps()
        self._before = self._at_end = self.start()

    def start(self) -> Reading:
        """The kept window begins; also its own warm-up. The clock is read last."""
        wire, written = sockets.read(), beside.written_bytes()
        self._before = replace(self._now(), wire=wire, written_bytes=written)
        return self._before

    def stop(self) -> None:
        """The last step is over."""
        self._at_end = self._now()

    def grown(self) -> Reading:
        """What was counted in between; bytes up to now."""
        before, end = self._before, self._at_end
        wire, written = sockets.read(), beside.written_bytes()
        return Reading(
            kernel_s=end.kernel_s - before.kernel_s,
            cpu_s=end.cpu_s - before.cpu_s,
            busy_s=_since(before.busy_s, end.busy_s),
            throttled_s=_since(before.throttled_s, end.throttled_s),
            written_bytes=None
            if written is None or before.written_bytes is None
            else written - before.written_bytes,
            wire=None if wire is None or before.wire is None else wire.since(before.wire),
        )

    def _now(self) -> Reading:
        busy, held = machine.busy_s(self._cores), cgroup.throttled_s()
        return Reading(
            busy_s=busy,
            throttled_s=held,
            cpu_s=process_time(),
            kernel_s=self._stamps.now_s(),
            written_bytes=None,
            wire=None,
        )


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
