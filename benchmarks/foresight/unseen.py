"""How well families of ladders are foreseen that taught nothing: each is left out in its turn.

    python -m benchmarks.foresight.unseen [FILE ..]      # results/published, half a minute

What is learned (by how much wider intervals are) comes from the other families. Errors are in
points of efficiency. A family's row has all that was said of it, with a ``?`` or without; the rows
below tell apart what was said plainly, what was said with a ``?``, kinds of ladders, and what was
refused until something is stated.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.foresight.learn import PUBLISHED
from harness.features.foresight.held_out import Counted, Score, counted, judged, score
from harness.features.foresight.learned import Regime, learned
from harness.features.foresight.physics.laws import Law
from harness.features.foresight.predict import Predicted, Prediction, predict
from harness.features.foresight.published.table import families_of

COLUMNS = (
    "family", "sizes", "mean", "p90", "worst", "in 80 %", "±", "?", "refused", *map(str, Law),
)  # fmt: skip


#: A size that lies so far under a power law in N, in efficiency, is past a knee.
KNEE = 0.10
#: Kinds of ladders; each is held against each baseline.
KINDS = (
    "without stages", "pipelines", "without stages, with a ?", "pipelines, with a ?", "schedules",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LeftOutFamily:
    """One family, by what the others taught. ``unsaid`` would have been said, but was refused."""

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
    """The table in Markdown."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for family in families:
        yield _row(family.name, family.answered, len(family.doubtful), family.refused)
    spoken = [c for family in families for c in family.answered]
    doubtful = [c for family in families for c in family.doubtful]
    refused = sum(family.refused for family in families)
    yield _row("all that was said", spoken, len(doubtful), refused)
    yield _row("said plainly", [c for family in families for c in family.plain], 0, 0)
    yield _row("said with a ?", doubtful, len(doubtful), 0)
    for kind in KINDS:
        yield _row(kind, [c for c in spoken if kind_of(c) == kind], 0, 0)
    unsaid = [c for family in families for c in family.unsaid]
    yield _row("refused: what would have been said", unsaid, 0, len(unsaid))
    yield ""
    yield _of_knees("said", spoken)
    yield _of_knees("refused", unsaid)


def _of_knees(name: str, of: Sequence[Counted]) -> str:
    """How many sizes lie far under what a law in N goes on to, and how many of these were carried
    by their interval, or flagged.
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
        f"knees of what was {name}: {len(knees)} sizes {100 * KNEE:.0f} points and more under a"
        f" power law; {carried} above the low end of their interval, {flagged} with a ?, {either}"
        " either"
    )


def _below(size: Predicted) -> float:
    """How far a measured size lies under the power law of the calibrated ones."""
    return size.baselines[Law.POWER] - (size.measured or 0.0)


def kind_of(counted: Counted) -> str:
    """The kind of ladder that a size belongs to: where a baseline is better, it is what to show."""
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
