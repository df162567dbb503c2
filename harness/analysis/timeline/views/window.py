"""One profiled window, opened: the traces of its ranks with all that was made of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.analysis.timeline.close import ReconciledBudget
from harness.analysis.timeline.intervals import Intervals
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.profiled import close_launch
from harness.analysis.timeline.reader import Trace
from harness.base.documents import Json
from harness.record import LaunchRecord, Term

#: Kinds of calls of the host to a device's driver.
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver")
#: Kinds of what a device does.
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Part(NamedTuple):
    """One rank of a window; ``terms`` are on its own clock, as its trace is."""

    trace: Trace
    lanes: Lanes
    terms: dict[Term, Intervals]


@dataclass(frozen=True, kw_only=True)
class ShownBudget:
    """``traces`` and ``lanes`` have the same order; ``readings`` are those of the devices."""

    traces: Sequence[Trace]
    lanes: Sequence[Lanes]
    closed: ReconciledBudget
    readings: Sequence[Json] = ()

    @property
    def rank_steps(self) -> int:
        """Steps of all ranks together: what totals are divided by."""
        return len(self.traces) * self.closed.budget.steps

    def parts(self) -> Iterator[Part]:
        for trace, lane in zip(self.traces, self.lanes, strict=True):
            offset = self.closed.offsets_ns.get(lane.rank, 0)
            tracks = self.closed.tracks[lane.rank]
            yield Part(trace, lane, {term: instants - offset for term, instants in tracks.items()})


def shown(folder: Path, launch: LaunchRecord) -> ShownBudget:
    """The window of a profiled launch of a run; ScaleproofError where its traces cannot be read."""
    traces, rank_lanes, closed = close_launch(folder, launch.launch, launch.ranks)
    devices = folder / "launches" / launch.launch / "gpus.json"
    readings = json.loads(devices.read_text(encoding="utf-8")) if devices.is_file() else ()
    return ShownBudget(traces=traces, lanes=rank_lanes, closed=closed, readings=readings)
