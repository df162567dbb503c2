"""Write the progress of a run to a file that a watchdog can read.

The file is in the OpenMetrics format, for the textfile collector of a node exporter. A watchdog
can also use its modification time only: a run that has not written it for a minute is stuck.
"""

import os
import time
from pathlib import Path

from harness.base import files
from harness.base.errors import SpecError
from harness.cases import heads
from harness.measure.progress import Beside, Looking, Moment, Progress, Waiting

#: Seconds between two writes of the file.
EVERY_S = 5.0


def watched(inner: Progress, where: str) -> Progress:
    """Return a progress that is also sent to ``where``, a file or an address.

    Return ``inner`` unchanged if ``where`` is empty.
    """
    if not where:
        return inner
    if "://" not in where:
        return Heartbeat(inner, Path(where))
    for module in heads.modules("WATCH"):
        beside: Progress = module.watch(inner, where)
        return beside
    raise SpecError(
        f"--heartbeat {where}: no installed feature can send progress to an address",
        expected="a file",
        fix="--heartbeat heartbeat.prom",
    )


class Heartbeat(Beside):
    """A progress that shows everything on ``inner`` and also writes it to a file.

    Raises SpecError if the file's folder is missing or not writable, or if the path is no file. If
    a write fails later, for example on a full disk, the run continues with a note.
    """

    def __init__(self, inner: Progress, path: Path) -> None:
        super().__init__(inner)
        self._path = path
        self._written_at = 0.0
        self._notes = 0
        self._told = False
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise SpecError(
                f"--heartbeat {path}: {path.parent} is not a writable folder",
                expected="a file in a folder that exists",
                fix="--heartbeat heartbeat.prom",
            )
        if path.exists() and not path.is_file():
            raise SpecError(
                f"--heartbeat {path}: this is no regular file",
                expected="a file, which is replaced at every heartbeat",
                fix="--heartbeat heartbeat.prom",
            )

    def show(self, moment: Moment | Waiting | Looking) -> None:
        self._inner.show(moment)
        if isinstance(moment, Looking):
            return  # No launch has begun.
        if time.monotonic() - self._written_at >= EVERY_S:
            self._written_at = time.monotonic()
            self._leave(openmetrics(moment, time.time(), self._notes))

    def _leave(self, text: str) -> None:
        try:
            files.write({self._path: text})
        except OSError as error:
            if not self._told:
                self._told = True
                self.note(f"the heartbeat {self._path} cannot be written: {error.strerror}")

    def note(self, text: str) -> None:
        self._notes += 1
        self._inner.note(text)


def openmetrics(moment: Moment | Waiting, now_s: float, notes: int) -> str:
    """Return a moment as OpenMetrics gauges; ``now_s`` is in seconds since the epoch."""
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
