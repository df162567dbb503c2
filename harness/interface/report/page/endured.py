"""Trainings that faults interrupted: their wall clock, sitting by sitting, and its terms."""

from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from harness.analysis import goodput
from harness.interface.report.faults import goodput as report
from harness.interface.report.page import drawings
from harness.record import RunRecord
from harness.record.recovery import Played

#: Okabe and Ito.
COLORS = {
    "train": "#0072B2", "slow": "#F0E442", "checkpoint": "#009E73", "detect": "#CC79A7",
    "stop": "#9aa0a6", "restart": "#E69F00", "load": "#56B4E9", "recomputed": "#D55E00",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Endured:
    """One training, ready to be shown."""

    case: str
    share: str
    drawing: Markup
    table: Markup
    said: str


def endured(run: RunRecord) -> list[Endured]:
    """Those that a schedule of faults interrupted."""
    return [_one(played) for played in run.played if played.mtbf_s is not None]


def _one(played: Played) -> Endured:
    began, lanes = played.sittings[0].began_ns, list[drawings.Lane]()
    for number, parts in groupby(goodput.segments(played), key=lambda part: part[0]):
        merged = list[tuple[str, float, float]]()
        for _, term, start, end in parts:
            if merged and merged[-1][0] == term:
                merged[-1] = (term, merged[-1][1], (end - began) / 1e9)
            elif end > start:
                merged.append((term, (start - began) / 1e9, (end - began) / 1e9))
        lanes.append(drawings.Lane(name=f"start {number + 1}", parts=merged))
    title = f"goodput of {played.case}"
    return Endured(
        case=played.case,
        share=f"{goodput.goodput(played):.1%}",
        drawing=Markup(drawings.lanes(lanes, COLORS, unit="s", title=title)),
        table=report.tabled(played, None).html(title),
        said=report.said(played),
    )
