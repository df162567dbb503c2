"""Score predictions against measured sizes that were held out: errors, coverage and skill."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from harness.features.foresight.learned import learned
from harness.features.foresight.physics.laws import Law
from harness.features.foresight.prediction import Predicted, Prediction, predict
from harness.features.foresight.published.table import PublishedTable
from harness.features.foresight.terms import ForeseenTerm

#: If the measured efficiencies of a table differ by at most this, no prediction is needed.
MOVES = 0.05
#: Shares of a profiled step. A bubble of at least BUBBLE_LIMITS counts as the limiter, and one of
#: at most NO_BUBBLE does not. Between them the profile is inconclusive.
BUBBLE_LIMITS = 0.10
NO_BUBBLE = 0.01


#: A size that was both measured and predicted, with its table.
Counted: TypeAlias = tuple[PublishedTable, Predicted]


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of ``num`` targets with a measured efficiency. Errors and widths are efficiencies.

    ``moves`` is the range of the measured efficiencies, including the base. ``reach`` is the
    largest target relative to the largest calibrated size. ``revealed`` is the number of targets
    whose profile shows the limiter, and ``named`` the number of those for which it was predicted
    correctly. ``baselines`` maps each simple law to its mean error.
    """

    name: str
    num: int
    mean: float
    p90: float
    worst: float
    coverage: float
    half_width: float
    moves: float
    reach: float
    baselines: Mapping[Law, float]
    revealed: int
    named: int

    @property
    def best_baseline(self) -> Law:
        return min(Law, key=self.baselines.__getitem__)

    @property
    def has_skill(self) -> bool | None:
        """Return whether the predictions are better than all baselines.

        Return None if the efficiency hardly changes.
        """
        if self.moves <= MOVES:
            return None
        return all(self.mean < error for error in self.baselines.values())


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of all tables of a file.

    Each table is predicted with factors that were learned from the other families alone.
    """

    predictions: tuple[Prediction, ...]
    tables: tuple[Score, ...]
    families: tuple[Score, ...]
    whole: Score | None


def evaluate(tables: Sequence[PublishedTable]) -> Evaluation:
    """Predict and score each table, with factors learned from the other families alone."""
    predictions = [predict(table, learned(leaving_out=table.family)) for table in tables]
    by_family: dict[str, list[Prediction]] = {}
    for p in predictions:
        by_family.setdefault(p.table.family, []).append(p)
    return Evaluation(
        predictions=tuple(predictions),
        tables=tuple(
            s
            for prediction in predictions
            if (s := score(prediction.table.id, counted([prediction])))
        ),
        families=tuple(s for name, of in by_family.items() if (s := score(name, counted(of)))),
        whole=score("all", counted(predictions)),
    )


def counted(predictions: Sequence[Prediction]) -> list[Counted]:
    """Return the predictions of sizes that were measured."""
    return [
        (prediction.table, size)
        for prediction in predictions
        for size in prediction.predicted
        if judged(size)
    ]


def score(name: str, counted: Sequence[Counted]) -> Score | None:
    """Return the score of these predictions; None if there are none."""
    if not counted:
        return None
    misses = np.array([abs(size.miss or 0.0) for _, size in counted])
    measured = [size.measured for _, size in counted if size.measured is not None]
    revealed = [
        flagged for table, size in counted if (flagged := _told_rightly(table, size)) is not None
    ]
    return Score(
        name=name,
        num=len(counted),
        mean=float(misses.mean()),
        p90=float(np.quantile(misses, 0.9)),
        worst=float(misses.max()),
        coverage=float(np.mean([size.covered for _, size in counted])),
        half_width=float(np.mean([(size.high - size.low) / 2 for _, size in counted])),
        moves=max(1.0, *measured) - min(1.0, *measured),
        reach=max(size.shape.ranks / _largest(table) for table, size in counted),
        baselines={
            law: float(
                np.mean(
                    [
                        abs(predicted.baselines[law] - (predicted.measured or 0.0))
                        for _, predicted in counted
                    ]
                )
            )
            for law in Law
        },
        revealed=len(revealed),
        named=sum(revealed),
    )


def judged(predicted: Predicted) -> bool:
    """Return whether a target is scored: it was measured, and its source has no evident typing
    error.
    """
    return predicted.measured is not None and not predicted.implausible


def _largest(table: PublishedTable) -> int:
    return max(point.shape.ranks for point in table.points if point.calibrates)


def _told_rightly(table: PublishedTable, predicted: Predicted) -> bool | None:
    """Return whether the predicted limiter is the one that a profile of the run shows.

    Return None if there is no profile, or if the profile is inconclusive.
    """
    bubble = next((point.bubble for point in table.points if point.shape == predicted.shape), None)
    if bubble is None:
        return None
    if bubble >= BUBBLE_LIMITS:
        return predicted.limiter is ForeseenTerm.BUBBLE
    return predicted.limiter is not ForeseenTerm.BUBBLE if bubble <= NO_BUBBLE else None
