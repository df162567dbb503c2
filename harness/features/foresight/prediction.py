"""Predict sizes of a table from the sizes on which the prediction is calibrated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight import attribute, cautions, curve, infer, terms
from harness.features.foresight.discrepancy import WALK
from harness.features.foresight.infer import Foreseen, Posterior
from harness.features.foresight.learned import HALF_SDS, Learned, Regime
from harness.features.foresight.physics import simulate
from harness.features.foresight.physics.laws import Law, extrapolate, line
from harness.features.foresight.published.table import PublishedTable
from harness.features.foresight.shapes import Model, Point, Shape
from harness.features.foresight.terms import ForeseenTerm

Array = NDArray[np.float64]
#: Quantiles between which 80 % of the true values shall lie.
QUANTILES = (0.1, 0.9)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The prediction for one target: its efficiency relative to the smallest calibrated size of its
    model.

    The efficiency lies in [``low``, ``high``] with 80 % probability. ``measured`` and
    ``measured_s`` are the efficiency and the step time of the table, or None if it has none.
    ``baselines`` holds the efficiencies that simple laws in N, the number of ranks, predict.
    """

    shape: Shape
    step_s: float
    efficiency: float
    low: float
    high: float
    regime: Regime
    limiter: ForeseenTerm
    shares: Mapping[ForeseenTerm, float]
    lost: Mapping[ForeseenTerm, float]
    baselines: Mapping[Law, float]
    #: Why the target's shape lies outside the calibrated range; empty if it does not.
    caution: str = ""
    measured: float | None = None
    measured_s: float | None = None
    #: Whether the published value deviates from both neighbouring sizes. If so, it is not scored.
    implausible: bool = False

    @property
    def miss(self) -> float | None:
        """Return predicted minus measured efficiency."""
        return None if self.measured is None else self.efficiency - self.measured

    @property
    def covered(self) -> bool | None:
        return None if self.measured is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class NotPredicted:
    """A target for which no prediction is shown, and the reason.

    ``unsaid`` is the prediction that is not shown until the user states more facts. It is stored so
    that the refusal itself can be scored.
    """

    shape: Shape
    why: str
    unsaid: Predicted | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """All predictions for a table."""

    table: PublishedTable
    taught_by: tuple[str, ...]
    predicted: tuple[Predicted, ...]
    refused: tuple[NotPredicted, ...]


def predict(table: PublishedTable, taught: Learned) -> Prediction:
    """Predict all points on which the table is not calibrated.

    Each configuration is calibrated separately. Software, precision or strategy without a
    calibrated point is refused, because other configurations do not predict it.
    """
    predicted: list[Predicted] = []
    refused: list[NotPredicted] = []
    for configuration in dict.fromkeys(p.shape.configuration for p in table.points):
        points = [p for p in table.points if p.shape.configuration == configuration]
        targets = [p for p in points if not p.calibrates]
        calibrated = [p for p in points if p.calibrates]
        able = []
        for point in targets:
            why = _obstacle(point, calibrated, table)
            if why:
                refused.append(NotPredicted(shape=point.shape, why=why))
            else:
                able.append(point)
        if not able:
            continue
        made = _of_configuration(table, calibrated, able, taught)
        everywhere = cautions.question(calibrated, table.fabric)
        for size in made:
            asks = everywhere or cautions.asks(size.shape, calibrated, table.fabric)
            if asks:
                refused.append(NotPredicted(shape=size.shape, why=asks, unsaid=size))
            else:
                predicted.append(size)
    return Prediction(
        table=table, taught_by=taught.families, predicted=tuple(predicted), refused=tuple(refused)
    )


def _obstacle(point: Point, calibrated: Sequence[Point], table: PublishedTable) -> str:
    """Return why a point cannot be predicted, or an empty string."""
    if not calibrated:
        known = {p.shape.configuration for p in table.points if p.calibrates}
        other = dict(next(iter(known)))
        differs = [f"{k} {v}" for k, v in point.shape.configuration if other.get(k) != v]
        return f"no calibrated point has {', '.join(differs) or 'its configuration'}"
    models = [p.shape.model for p in calibrated]
    if point.shape.model not in models:
        if any(models.count(model) > 1 for model in models) or point.shape.model.params is None:
            return f"no calibrated point has model {point.shape.model.name or 'of this size'}"
    return ""


def _of_configuration(
    table: PublishedTable, calibrated: Sequence[Point], targets: Sequence[Point], taught: Learned
) -> list[Predicted]:
    known = calibrate(table, calibrated, targets, taught)
    step_s = infer.foresee(known, [target.shape for target in targets])
    return [
        _on_curve(table, calibrated, point)
        if cautions.lacks_facts(point.shape, calibrated, table.fabric)
        else _by_terms(table, calibrated, point, known, step_s, number, taught)
        for number, point in enumerate(targets)
    ]


def _on_curve(table: PublishedTable, calibrated: Sequence[Point], point: Point) -> Predicted:
    """Predict a size from the number of ranks alone."""
    base = base_of(point.shape, calibrated)
    assert base.step_s is not None
    base_rate = base.shape.rate(base.step_s)
    sizes = {
        p.shape.ranks: p.shape.rate(p.step_s)
        for p in sorted(calibrated, key=lambda p: p.shape.ranks)
        if p.step_s and p.shape.model == base.shape.model
    }
    seen = curve.extrapolate(
        list(sizes.items()), point.shape.ranks, table.fabric.per_node, leaving_out=table.family
    )
    return Predicted(
        shape=point.shape,
        step_s=point.shape.flops / (point.shape.ranks * seen.efficiency * base_rate),
        efficiency=seen.efficiency,
        low=seen.low,
        high=seen.high,
        regime=Regime.CURVE,
        limiter=ForeseenTerm.GROWTH,
        shares={ForeseenTerm.GROWTH: 1 - seen.efficiency},
        lost={ForeseenTerm.GROWTH: 1 - seen.efficiency},
        measured=point.shape.rate(point.step_s) / base_rate if point.step_s else None,
        measured_s=point.step_s,
        baselines=_baselines(point.shape, calibrated, base_rate),
        implausible=departs(point, table.points),
    )


def _by_terms(
    table: PublishedTable,
    calibrated: Sequence[Point],
    point: Point,
    known: Posterior,
    seen: Foreseen,
    number: int,
    taught: Learned,
) -> Predicted:
    """Predict a size from the terms of its step; ``number`` is its index in ``seen``."""
    base = base_of(point.shape, calibrated)
    assert base.step_s is not None
    step_s = float(np.exp(seen.middle[number]))
    (of,) = attribute.attribute(known, base.shape, base.step_s, [point.shape], np.array([step_s]))
    caution = cautions.caution(point.shape, calibrated, table.fabric)
    unseen = bool(caution) or attribute.unseen(known, point.shape)
    regime = regime_of(point.shape, calibrated, unseen)
    low, high = _interval(seen, number, taught.stretch[regime] * table.stretch, base.log_sd)
    base_rate = base.shape.rate(base.step_s)
    return Predicted(
        shape=point.shape,
        step_s=step_s,
        regime=regime,
        limiter=of.limiter,
        shares=of.shares,
        lost=of.lost,
        efficiency=point.shape.rate(step_s) / base_rate,
        low=point.shape.rate(high) / base_rate,
        high=point.shape.rate(low) / base_rate,
        measured=point.shape.rate(point.step_s) / base_rate if point.step_s else None,
        measured_s=point.step_s,
        baselines=_baselines(point.shape, calibrated, base_rate),
        caution=caution,
        implausible=departs(point, table.points),
    )


def calibrate(
    table: PublishedTable, calibrated: Sequence[Point], targets: Sequence[Point], taught: Learned
) -> Posterior:
    models: list[Model] = list(
        dict.fromkeys(point.shape.model for point in (*calibrated, *targets))
    )
    return infer.calibrate(
        table.fabric,
        [point.shape for point in calibrated],
        [point.step_s for point in calibrated if point.step_s],
        models,
        beliefs={**taught.beliefs, **table.beliefs},
        hop=_hop(calibrated),
        walk=WALK,
        log_sd=[point.log_sd for point in calibrated if point.step_s],
    )


def _hop(calibrated: Sequence[Point]) -> float:
    """Return the hop time between stages that reproduces the profiled bubbles of
    calibrated runs.
    """
    hops = []
    for point in calibrated:
        shape = point.shape
        if point.bubble is None or shape.stages == 1:
            continue

        def bubble(hop: float, shape: Shape = shape) -> float:
            took = terms.durations(shape, hop)
            played = simulate.units(shape.schedule, shape.stages, shape.micros, took, shape.chunks)
            return 1 - shape.micros / played

        grid = np.linspace(0.0, 0.05, 11)
        hops.append(float(np.interp(point.bubble, [bubble(float(h)) for h in grid], grid)))
    return float(np.median(hops)) if hops else terms.HOP


def base_of(shape: Shape, calibrated: Sequence[Point]) -> Point:
    """Return the smallest calibrated size of the same model.

    If this model has no calibrated size, return the smallest one of any model.
    """
    of_model = [point for point in calibrated if point.shape.model == shape.model]
    return min(of_model or calibrated, key=lambda point: point.shape.ranks)


def regime_of(shape: Shape, calibrated: Sequence[Point], unseen: bool) -> Regime:
    if unseen:
        return Regime.UNSEEN
    of_model = [point.shape for point in calibrated if point.shape.model == shape.model]
    if not of_model:
        return Regime.REMODELLED
    if all(o.schedule is not shape.schedule for o in of_model):
        return Regime.RESCHEDULED
    return Regime.RESIZED


def _interval(seen: Foreseen, i: int, stretch: float, base_sd: float) -> tuple[float, float]:
    """Return the 80 % interval of the step time in seconds.

    The distances of both ends from the median are multiplied by ``stretch``. The interval is then
    widened by the uncertainty of the baseline's measured step, which is assumed to be independent
    of the draws.
    """
    ends = np.quantile(seen.draws[:, i], QUANTILES)
    below, above = np.hypot(stretch * (ends - seen.middle[i]), HALF_SDS * base_sd)
    return float(np.exp(seen.middle[i] - below)), float(np.exp(seen.middle[i] + above))


def _baselines(shape: Shape, calibrated: Sequence[Point], base_rate: float) -> dict[Law, float]:
    """Return the efficiency that each simple law predicts.

    The laws are functions of the number of ranks N, fitted to the model's calibrated sizes.
    """
    of_model = [point for point in calibrated if point.shape.model == shape.model] or list(
        calibrated
    )
    sizes = [point.shape.ranks for point in of_model]
    rates = [
        point.shape.ranks * point.shape.rate(point.step_s) for point in of_model if point.step_s
    ]
    out: dict[Law, float] = {
        law: float(extrapolate(law, sizes, rates, [shape.ranks])[0] / shape.ranks / base_rate)
        for law in Law
        if law is not Law.LINE
    }
    steps = [point.step_s for point in of_model if point.step_s]
    of_one = len({point.shape.model for point in of_model}) == 1
    known = list(zip((_passed(point.shape) for point in of_model), steps, strict=True))
    step_s = line(known if of_one else known[-1:], _passed(shape))
    return {**out, Law.LINE: shape.rate(step_s) / base_rate}


def _passed(shape: Shape) -> float:
    """Return the FLOPs of a rank in a step, plus the FLOPs that would fit into its bubble."""
    bubble = 1 + (shape.stages - 1) / shape.chunks / shape.micros
    return shape.flops / shape.ranks * bubble


def departs(point: Point, points: Sequence[Point]) -> bool:
    """Return whether a published rate differs by over 10 % from the rate of each neighbouring size.

    The neighbours must agree within 5 %.
    """
    if point.step_s is None:
        return False
    ladder = sorted(
        (
            p
            for p in points
            if p.step_s
            and replace(p.shape, ranks=1, micros=1, micro_batch=1.0)
            == replace(point.shape, ranks=1, micros=1, micro_batch=1.0)
        ),
        key=lambda p: p.shape.ranks,
    )
    at = next((i for i, p in enumerate(ladder) if p is point), 0)
    if not 0 < at < len(ladder) - 1:
        return False
    before, rate, after = (p.shape.rate(p.step_s) for p in ladder[at - 1 : at + 2] if p.step_s)
    agree = abs(np.log(after / before)) < 0.05
    return bool(agree and min(abs(np.log(rate / before)), abs(np.log(rate / after))) > 0.1)
