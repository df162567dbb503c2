"""Profile the last steps of a script, with a profiler that starts in the middle of the run."""

from pathlib import Path
from typing import Any

from harness.cases import Window
from harness.launch.wire.messages import Script
from harness.training.observe.clock import Clock
from harness.training.observe.profiling import Outline, Profiler
from harness.training.rank.setup import Rank


class Profile:
    """A profile of one rank. It is created at the start of the kept window, between two steps."""

    def __init__(self, task: Script, rank: Rank) -> None:
        num_kept = task.steps - task.cut
        place = rank.place
        self._rank = rank
        self._clock = Clock()
        self._profiler: Profiler | Outline
        if task.pairs:
            window = Window(steps=num_kept, cut=0, profiled=task.profiled, pairs=task.pairs)
            self._profiler = Outline(window, place.rank, place.world_size)
        else:
            self._profiler = Profiler(num_kept, task.profiled, rank.accelerator)
        self._clock.handshake()

    def step(self) -> None:
        """Handle the end of a step."""
        self._profiler.step()

    def end(self, out: Path) -> dict[str, Any]:
        """Write the trace, and return the fields of the record that describe it."""
        self._profiler.stop()
        self._clock.handshake()
        return {
            "trace_sha256": self._profiler.export(
                lambda suffix: out / self._rank.file(suffix).name
            ),
            "clock_offset_ns": self._clock.offset_ns,
            "clock_half_ns": self._clock.half_width_ns,
        }
