"""A file that a watchdog reads while a run goes on: where it is, and when it last said so.

In the format of OpenMetrics, for a node exporter's textfile collector; or by its time alone: a run
that has not written it for a minute is stuck, whatever it was at.
"""

import time
from pathlib import Path

from harness.base import files
from harness.measure.progress import Moment, Progress, Waiting

#: Seconds between two writes.
EVERY_S = 5.0


class Heartbeat(Progress):
    """Shows all that ``inner`` shows, and leaves it in a file as well."""

    def __init__(self, inner: Progress, path: Path) -> None:
        self._inner, self._path, self._written_at = inner, path, 0.0
        self._notes = 0

    def show(self, moment: Moment | Waiting) -> None:
        self._inner.show(moment)
        if time.monotonic() - self._written_at >= EVERY_S:
            self._written_at = time.monotonic()
            files.write({self._path: openmetrics(moment, time.time(), self._notes)})

    def note(self, text: str) -> None:
        self._notes += 1
        self._inner.note(text)

    def clear(self) -> None:
        self._inner.clear()


def openmetrics(moment: Moment | Waiting, now_s: float, notes: int) -> str:
    """A moment as gauges; ``now_s`` in seconds of the epoch."""
    if isinstance(moment, Waiting):
        labels = f'plan="",case="",purpose="waiting for {moment.wanted} agents"'
        gauges = {"agents": moment.here, "elapsed_seconds": moment.waited_s}
    else:
        case = moment.arm.replace("\\", "\\\\").replace('"', '\\"')
        labels = f'plan="{moment.number} of {moment.num_plans}",case="{case}"'
        labels += f',purpose="{moment.purpose}"'
        gauges = {"elapsed_seconds": moment.elapsed_s, "step": moment.step}
        if moment.left_s is not None:
            gauges["left_seconds"] = moment.left_s
    gauges |= {"heartbeat_timestamp_seconds": now_s, "notes": notes}
    lines = ["# TYPE scaleproof_run info", f"scaleproof_run_info{{{labels}}} 1"]
    for name, value in gauges.items():
        lines += [f"# TYPE scaleproof_{name} gauge", f"scaleproof_{name} {value!r}"]
    return "\n".join([*lines, "# EOF", ""])
