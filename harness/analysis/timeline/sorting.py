"""Sorts one rank's trace into lanes, as its ranks computed: on the host, or on a device."""

from dataclasses import replace

from harness.analysis.timeline.device_lanes import device_lanes
from harness.analysis.timeline.host_lanes import host_lanes, outline_lanes, outlined
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.reader import Trace
from harness.base.errors import ScaleproofError


def lanes(trace: Trace, rank: int | None = None, step_name: str | None = None) -> Lanes:
    """Sort a trace. ``rank`` where the file does not say it itself.

    ``step_name`` is the annotation that is a step; without, it is the profiler's own.
    """
    known = trace.rank if trace.rank >= 0 else (rank or 0)
    if trace.of_cat("kernel").any():
        lane = device_lanes(trace, known, step_name)
    elif outlined(trace):
        lane = outline_lanes(trace, known)
    else:
        lane = host_lanes(trace, known, step_name)
    if (lane.edges[1:] <= lane.edges[:-1]).any() or len(lane.edges) < 2:
        raise ScaleproofError(
            "no step in this trace has a length",
            where=trace.path,
            expected="steps that run something",
            fix="profile 3 steps and more, then try again",
        )
    unsure = lane.unsure + ((trace.partial,) if trace.partial else ()) + trace.notes
    return replace(lane, unsure=unsure)
