"""Score predictions of published scaling sweeps, each family without what it has taught.

python -m benchmarks.foresight.unseen [FILE ..] # results/published, half a minute

The learned factors (by how much intervals are stretched) come from the other families. Errors are
in points of efficiency. The row of a family includes all predictions, with the caution ``?`` or
without. The rows below separate predictions without ``?``, predictions with ``?``, kinds of sweeps,
and predictions that are refused until the user states more facts.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.foresight.learn import PUBLISHED
from harness.features.foresight.held_out import Counted, Score, counted, judged, score
from harness.features.foresight.learned import Regime, learned
from harness.features.foresight.physics.laws import Law
from harness.features.foresight.prediction import Predicted, Prediction, predict
from harness.features.foresight.published.table import families_of

COLUMNS = (
    "family", "sizes", "mean", "p90", "worst", "in 80 %", "±", "?", "refused", *map(str, Law),
)  # fmt: skip


#: Efficiency by which a size must lie below a power law in N to count as past a knee.
KNEE = 0.10
#: Kinds of scaling sweeps; each is compared with each baseline.
KINDS = (
    "without stages", "pipelines", "without stages, with a ?", "pipelines, with a ?", "schedules",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LeftOutFamily:
    """The predictions of one family, with what the other families have taught.

    ``unsaid`` holds predictions that were refused but would otherwise have been made.
    """

    name: str
    answered: tuple[Counted, ...]
    unsaid: tuple[Counted, ...]
    refused: int

    @property
    def doubtful(self) -> list[Counted]:
        return [c for c in self.answered if c[1].regime is Regime.UNSEEN]

    @property
    def plain(self) -> list[Counted]:
        return [c for c in self.answered if c[1].regime is not Regime.UNSEEN]


def left_out(files: Sequence[Path]) -> list[LeftOutFamily]:
    families = []
    for name, tables in families_of(files).items():
        taught = learned(leaving_out=name)
        made = [predict(table, taught) for table in tables]
        families.append(
            LeftOutFamily(
                name=name,
                answered=tuple(counted(made)),
                unsaid=tuple(_unsaid(made)),
                refused=sum(len(prediction.refused) for prediction in made),
            )
        )
    return families


def _unsaid(made: Sequence[Prediction]) -> Iterator[Counted]:
    for prediction in made:
        for refused in prediction.refused:
            if refused.unsaid is not None and judged(refused.unsaid):
                yield prediction.table, refused.unsaid


def lines(families: Sequence[LeftOutFamily]) -> Iterator[str]:
    """Yield the table in Markdown."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for family in families:
        yield _row(family.name, family.answered, len(family.doubtful), family.refused)
    spoken = [c for family in families for c in family.answered]
    doubtful = [c for family in families for c in family.doubtful]
    refused = sum(family.refused for family in families)
    yield _row("all predictions", spoken, len(doubtful), refused)
    yield _row("without a ?", [c for family in families for c in family.plain], 0, 0)
    yield _row("with a ?", doubtful, len(doubtful), 0)
    for kind in KINDS:
        yield _row(kind, [c for c in spoken if kind_of(c) == kind], 0, 0)
    unsaid = [c for family in families for c in family.unsaid]
    yield _row("refused: predictions that were withheld", unsaid, 0, len(unsaid))
    yield ""
    yield _of_knees("predicted", spoken)
    yield _of_knees("refused", unsaid)


def _of_knees(name: str, of: Sequence[Counted]) -> str:
    """Return how many sizes lie far below an extrapolated law in N.

    The sentence also states how many of these were within their interval, or flagged.
    """
    knees = [
        predicted
        for _, predicted in of
        if predicted.measured is not None and _below(predicted) >= KNEE
    ]
    carried = sum(size.low <= (size.measured or 0.0) for size in knees)
    flagged = sum(size.regime is Regime.UNSEEN for size in knees)
    either = sum(
        knee.low <= (knee.measured or 0.0) or knee.regime is Regime.UNSEEN for knee in knees
    )
    return (
        f"knees among {name} sizes: {len(knees)} sizes at least {100 * KNEE:.0f} points below a"
        f" power law; {carried} above the low end of their interval, {flagged} with a ?, {either}"
        " with either"
    )


def _below(size: Predicted) -> float:
    """Return how far a measured size lies below the power law of the calibrated ones."""
    return size.baselines[Law.POWER] - (size.measured or 0.0)


def kind_of(counted: Counted) -> str:
    """Return the kind of sweep to which a size belongs; the scores show which baseline is better
    for it.
    """
    _, size = counted
    if size.regime is Regime.UNSEEN:
        return KINDS[3] if size.shape.stages > 1 else KINDS[2]
    if size.regime is Regime.RESCHEDULED:
        return KINDS[4]
    return KINDS[1] if size.shape.stages > 1 else KINDS[0]


def _row(name: str, of: Sequence[Counted], doubtful: int, refused: int) -> str:
    made = score(name, of)
    if made is None:
        blank = ["0", *["n/a"] * 5, str(doubtful), str(refused), *["n/a"] * len(Law)]
        return f"| {name} | {' | '.join(blank)} |"
    return f"| {name} | {' | '.join(_cells(made, doubtful, refused))} |"


def _cells(made: Score, doubtful: int, refused: int) -> list[str]:
    points = [f"{100 * v:.1f}" for v in (made.mean, made.p90, made.worst)]
    width = [f"{made.coverage:.0%}", f"{100 * made.half_width:.1f}"]
    laws = [f"{100 * made.baselines[law]:.1f}" for law in Law]
    return [str(made.num), *points, *width, str(doubtful), str(refused), *laws]


def main(files: Sequence[str]) -> None:
    paths = [Path(f) for f in files] or sorted(PUBLISHED.glob("*.json"))
    print("\n".join(lines(left_out(paths))))


if __name__ == "__main__":
    main(sys.argv[1:])
