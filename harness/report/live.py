"""The live line: one rewriting line on a terminal, one plain line per arm and block otherwise."""

from __future__ import annotations

import shutil
from typing import TextIO

from harness.measure import Moment
from harness.record import Purpose
from harness.units import duration


class Live:
    """Draws moments on ``stream``; ``quiet`` keeps only notes."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self.stream, self.quiet = stream, quiet
        self.tty = stream.isatty()
        self._last = ""
        self._drawn = False

    def show(self, moment: Moment) -> None:
        """Draw where the run is."""
        if self.quiet:
            return
        if self.tty:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            self.stream.write("\r" + line(moment)[:width].ljust(width))
            self.stream.flush()
            self._drawn = True
        else:
            key = f"{moment.plan} {moment.purpose}"
            if key != self._last:
                self._last = key
                self.stream.write(line(moment) + "\n")
                self.stream.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self.stream.write(f"  ! {text}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Remove the live line."""
        if self._drawn:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            self.stream.write("\r" + " " * width + "\r")
            self.stream.flush()
            self._drawn = False


def line(m: Moment) -> str:
    """``[ 9/32] ddp/decoder-tiny/weak@2cpu  step 12/28  262 samples/s  0:42  ETA 1:10``"""
    if m.purpose is Purpose.GATE:
        return f"  [gate] {m.arm}  checking that it trains correctly  {duration(m.elapsed_s)}"
    eta = "" if m.left_s is None else f"  ETA {duration(m.left_s)}"
    width = len(str(m.num_launches))
    return (
        f"  [{m.launch:>{width}}/{m.num_launches}] {m.arm}  step {m.step}/{m.num_steps}"
        f"  {m.last}  {duration(m.elapsed_s)}{eta}"
    )
