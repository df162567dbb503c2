"""Print the live line, which is rewritten on a terminal and otherwise printed once per arm."""

import shutil
from collections.abc import Callable
from typing import TextIO

from harness.base.formatting import duration, plain
from harness.interface.report.text import put, shortened, wrap
from harness.measure.progress import Looking, Moment, Progress, Waiting
from harness.record import Purpose

#: The shortest length, in characters, to which a case's name is shortened.
LEAST_NAME = 16


class Live(Progress):
    """Print the progress of a run on ``stream``; ``quiet`` prints only notes.

    ``column`` returns the column to which another program has written on the current line. The live
    line is then drawn below that line, and the cursor returns to the column when the live line is
    removed.
    """

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, column: Callable[[], int] | None = None
    ) -> None:
        self.stream = stream
        self.quiet = quiet
        self.column = column
        self._last = ""
        self._drawn = False
        self._broken_at = 0  # The column at which a new line last began.

    def show(self, moment: Moment | Waiting | Looking) -> None:
        if self.quiet:
            return
        if self.stream.isatty():
            width = self._width()
            start = "\n" if self.column and not self._drawn else "\r"
            put(self.stream, f"{start}{plain(line(moment, width))[:width]}\033[K")
            self._drawn = True
        elif (key := _key(moment)) != self._last:
            self._last = key
            self._print(plain(line(moment, self._width())))
        self.stream.flush()

    def note(self, text: str) -> None:
        self.clear()
        self._print("\n".join(wrap(f"  ! {plain(text)}", self._width(), 4)))
        self.stream.flush()

    def _width(self) -> int:
        return max(20, shutil.get_terminal_size((100, 24)).columns - 1)

    def _print(self, text: str) -> None:
        """Print whole lines below the line that another program has begun."""
        column = self.column() if self.column else 0
        start = "\n" if column != self._broken_at else ""
        self._broken_at = column
        put(self.stream, f"{start}{text}\n")

    def clear(self) -> None:
        if not self._drawn:
            return
        self.stream.write("\r\033[K")
        if self.column:
            self.stream.write("\033[A" + (f"\033[{c}C" if (c := self.column()) else ""))
        self.stream.flush()
        self._drawn = False


def _key(m: Moment | Waiting | Looking) -> str:
    """Return the key of a moment.

    Without a terminal, only the first of successive moments with the same key is printed.
    """
    if isinstance(m, Looking):
        return "looking"
    return f"waiting {m.says}" if isinstance(m, Waiting) else f"{m.plan} {m.purpose}"


#: Descriptions of the launches that are not timed, by their purpose.
_DOES = {
    Purpose.GATE: "checking correctness",
    Purpose.PROBE: "alone, and concurrently with other worlds",
    Purpose.PILOT: "choosing warm-up and number of steps",
    Purpose.REFERENCE: "computing the expected losses",
    Purpose.PROFILE: "profiling its steps",
    Purpose.ROUND: "pairs of nodes",
    Purpose.BITS: "comparing what ranks compute, bit for bit",
}


def line(m: Moment | Waiting | Looking, width: int) -> str:
    """Return the live line of a moment.

    If it would be wider than ``width``, what is done is left out, and then the name of the case is
    shortened: the time left always fits.

    ``[3/11   9/32] ddp/decoder-tiny/weak@2cpu  step 12/28  262 samples/s  0:42  ETA 1:10``
    shows plan 3 of 11 and launch 9 of 32 of that plan.
    """
    place, name, action, clock = _parts(m)
    room = width - len(place) - len(clock)
    if len(name) + len(action) > room:
        action = ""
    return place + shortened(name, max(LEAST_NAME, room - len(action))) + action + clock


def _parts(m: Moment | Waiting | Looking) -> tuple[str, str, str, str]:
    """Return the place in the run, the name of a case, what is done, and the times."""
    if isinstance(m, Waiting):
        says = f"  {m.says}" if m.says else ""
        waited = duration(m.waited_s)
        return f"  [start] agents ready: {m.here} of {m.wanted}{says}  {waited}", "", "", ""
    if isinstance(m, Looking):
        left = "?" if m.left_s is None else duration(m.left_s)
        place = f"{m.done + 1}/{m.num_cases}"
        clock = f"  {duration(m.elapsed_s)}  ETA {left}"
        return f"  [look {place}] ", m.case, "  what it computes, sends and holds", clock
    if m.purpose is Purpose.FABRIC:
        place = f"{m.launch}/{m.num_launches}"
        return f"  [fabric {place}] ", m.plan, "  every collective, checked and timed", ""
    left = f"  ETA {'?' if m.left_s is None else duration(m.left_s)}"
    clock = f"  {duration(m.elapsed_s)}{left}"
    place = f"{m.number}/{m.num_plans}"
    if m.purpose in _DOES:
        return f"  [{m.purpose} {place}] ", m.arm, f"  {_DOES[m.purpose]}", clock
    launch = f"{m.launch:>{len(str(m.num_launches))}}/{m.num_launches}"
    rate = f"  {m.last}" if m.last else ""
    return (
        f"  [{place}  {launch}] ",
        m.arm,
        f"  step {min(m.step, m.num_steps)}/{m.num_steps}{rate}",
        clock,
    )
