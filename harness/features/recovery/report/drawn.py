"""Trainings that faults interrupted: their wall clock, sitting by sitting, and its terms."""

from itertools import groupby

from markupsafe import Markup

from harness.features.recovery import goodput
from harness.interface.report.page import drawings
from harness.record.recovery import Played

#: Okabe and Ito.
COLORS = {
    "train": "#0072B2", "slow": "#F0E442", "checkpoint": "#009E73", "detect": "#CC79A7",
    "stop": "#9aa0a6", "restart": "#E69F00", "load": "#56B4E9", "recomputed": "#D55E00",
}  # fmt: skip


def drawing(played: Played) -> Markup:
    """A lane for each sitting: what each term of the wall clock took, in s."""
    began = played.sittings[0].began_ns
    lanes = list[drawings.Lane]()
    for number, parts in groupby(goodput.segments(played), key=lambda part: part[0]):
        merged = list[tuple[str, float, float]]()
        for _, term, start, end in parts:
            if merged and merged[-1][0] == term:
                merged[-1] = (term, merged[-1][1], (end - began) / 1e9)
            elif end > start:
                merged.append((term, (start - began) / 1e9, (end - began) / 1e9))
        lanes.append(drawings.Lane(name=f"start {number + 1}", parts=merged))
    title = f"goodput of {played.case}"
    return Markup(drawings.lanes(lanes, COLORS, unit="s", title=title))
