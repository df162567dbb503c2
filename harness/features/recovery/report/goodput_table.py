"""The report on an interrupted training: its wall clock by term, predicted and measured."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from harness.base.documents import Json, to_doc
from harness.base.formatting import duration, si
from harness.features.recovery import goodput
from harness.interface.report.page import drawings
from harness.interface.report.tabled import Table
from harness.interface.report.templates import templates
from harness.interface.report.text import Column, rule, wrap
from harness.record import RunRecord
from harness.record.recovery import FaultedTraining

SECTION = dict(title="Goodput", anchor="goodput", after="fabric", place=2)
#: Explanation of each term in the table.
_TOLD = dict(
    train="steps that were kept",
    slow="time of slow steps beyond twice the usual step time",
    checkpoint="time for which training paused to save",
    detect="from a fault to its detection",
    stop="from the detection until all ranks had ended",
    restart="until the new ranks had started",
    load="until the checkpoint was loaded",
    recomputed="steps that a fault undid, because they were not in a checkpoint",
)
#: Colors of the terms, from the color-blind safe palette of Okabe and Ito.
COLORS = {
    "train": "#0072B2", "slow": "#F0E442", "checkpoint": "#009E73", "detect": "#CC79A7",
    "stop": "#9aa0a6", "restart": "#E69F00", "load": "#56B4E9", "recomputed": "#D55E00",
}  # fmt: skip


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """Return a table for each training with a schedule of faults, or nothing if there is none."""
    shown = []
    for played in run.played:
        if played.mtbf_s is not None:
            shown += [*of_play(played, None, width), ""]
    return shown


def html(run: RunRecord) -> Markup:
    """Return the section of a page, with a drawing of the wall clock of every start."""
    trainings = [
        {
            "case": played.case,
            "share": f"{goodput.goodput(played):.1%}",
            "said": sentence(played),
            "drawing": drawing(played),
            "table": tabled(played, None).html(f"goodput of {played.case}"),
        }
        for played in run.played
        if played.mtbf_s is not None
    ]
    template = templates(Path(__file__).parent).get_template("goodput.jinja")
    return Markup(template.render(trainings=trainings)) if trainings else Markup("")


def data(run: RunRecord) -> Mapping[str, Json]:
    """Return the measured attempts of every training."""
    return {"played": to_doc(run.played)}


def of_play(played: FaultedTraining, foretold: Mapping[str, float] | None, width: int) -> list[str]:
    """Return the table of a training and a sentence on its faults.

    ``foretold`` maps each term to its predicted seconds, or is None without a prediction.
    """
    title = f"goodput: {played.case}"
    return [
        rule(title, width),
        *tabled(played, foretold).lines(width),
        *wrap(sentence(played), width, 1),
    ]


def tabled(played: FaultedTraining, foretold: Mapping[str, float] | None) -> Table[str]:
    """Return a table with a row for each term, in seconds and as a share of the wall clock."""
    terms = goodput.terms_ns(played)
    wall = goodput.wall_ns(played)
    expected_s = sum(foretold.values()) if foretold else 0.0
    columns = [
        Column[str]("term", 10, lambda t: t, left=True),
        Column("took", 8, lambda t: si(terms[t] / 1e9, "s"), raw=lambda t: terms[t] / 1e9),
        Column("share", 7, lambda t: f"{terms[t] / wall:.1%}", raw=lambda t: terms[t] / wall),
    ]
    if foretold is not None:
        columns.append(Column("predicted", 8, lambda t: f"{foretold[t] / expected_s:.1%}"))
    columns.append(Column("meaning of the term", 9, lambda t: _TOLD[t], left=True, prose=True))
    return Table(columns=columns, rows=list(goodput.TERMS))


def sentence(played: FaultedTraining) -> str:
    """Return a sentence with the number of faults, the wall time and the checkpoint interval."""
    faults = len(played.sittings) - 1
    wall_s = goodput.wall_ns(played) / 1e9
    drawn = f"one in {duration(played.mtbf_s or 0.0)} on average, seed {played.seed}"
    return (
        f" {faults} faults in {duration(wall_s)} ({drawn}); a checkpoint every {played.every} steps"
    )


def drawing(played: FaultedTraining) -> Markup:
    """Return a drawing of the wall clock in seconds, with a lane for each start.

    The sections of a lane are the terms.
    """
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
