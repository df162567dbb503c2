"""Decide which thresholds a fabric can meet at all, before anything is measured on it.

threshold, contrast -> shapes of subject and baseline -> draws of the unknowns, within the range
that published scaling sweeps have shown -> possible values -> is the bound among them? -> factor by
which the links would have to be faster

Peaks and rates come from data sheets or from a bandwidth sweep, so the answer is rough. It shows
which thresholds no tuning will reach, and which ones nothing rules out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from harness.analysis.judging import blockers
from harness.cases import CaseSpec, Catalogue, Contrast, Plan, Threshold
from harness.features.foresight import priors, terms
from harness.features.foresight.attribute import limiter
from harness.features.foresight.invert import least
from harness.features.foresight.learned import learned
from harness.features.foresight.own.runs import shape_of
from harness.features.foresight.own.stated import sent_by, stated
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.priors import Belief
from harness.features.foresight.shapes import KeptStates, Shape
from harness.features.foresight.terms import ForeseenTerm, Unknown
from harness.host.machine import Machine
from harness.record import Described, ModelFacts

Array = NDArray[np.float64]
#: Metrics that can be predicted from the fabric.
METRICS = ("efficiency", "speedup")
#: Belief about the share of a device's peak FLOP/s that training reaches: its median, and the
#: standard deviation of its logarithm.
PEAK_SHARE = Belief(0.4, 0.35)
NUM_DRAWS = 1000
SEED = 7
#: Quantiles of the predicted value. A value below LOW or above HIGH is unlikely, and one above BEST
#: is practically impossible.
LOW = 0.1
HIGH = 0.9
BEST = 0.975


class Chance(StrEnum):
    YES = "possible"
    OPEN = "open"
    NO = "not possible"


@dataclass(frozen=True, kw_only=True)
class RuleLeftOut:
    """A threshold for which no prediction is made, with the reason."""

    rule: str
    case: str
    why: str


@dataclass(frozen=True, kw_only=True)
class FabricSite:
    """The machine on which the thresholds are to be met.

    It has links (``fabric``), and ``peaks`` maps each dtype to the peak FLOP/s of a device.
    """

    machine: Machine
    fabric: Fabric
    peaks: Mapping[str, float]
    beliefs: Mapping[Unknown, Belief]


@dataclass(frozen=True, kw_only=True)
class Possibility:
    """The prediction for one threshold on one contrast.

    The value lies in [low, high] with 80 % probability. A case that does not fit into memory
    (``fits``) is not possible, whatever its value. ``times`` is the factor by which the links must
    be faster for ``middle`` to reach the bound. It is 1 if they are fast enough, and None if no
    speed of the links is enough.
    """

    rule: str
    case: str
    world: str
    metric: str
    against: str
    bound: float
    middle: float
    low: float
    high: float
    chance: Chance
    fits: bool
    limiter: ForeseenTerm
    times: float | None


def possibilities(
    plan: Plan,
    described: Mapping[str, Described],
    thresholds: Sequence[Threshold],
    site: FabricSite,
    catalogue: Catalogue,
) -> Iterator[Possibility | RuleLeftOut]:
    """Yield for each threshold of a plan a prediction, or the reason why it is not predicted."""
    for contrast in plan.contrasts:
        case = plan.arm(contrast.subject).case
        matched = [
            threshold for threshold in thresholds if threshold.matches(case, contrast, site.machine)
        ]
        silent = {
            threshold.name: why for threshold in matched if (why := unsaid(contrast, threshold))
        }
        yield from (RuleLeftOut(rule=name, case=case.id, why=why) for name, why in silent.items())
        rules = [threshold for threshold in matched if threshold.name not in silent]
        if not rules:
            continue
        base = plan.arm(contrast.baseline[0]).case
        try:
            pair = [_shape(c, described[c.hash], catalogue) for c in (base, case)]
            draws = _draws(case, described[case.hash].facts, pair[0], site)
        except ValueError as error:
            yield from (
                RuleLeftOut(rule=threshold.name, case=case.id, why=str(error))
                for threshold in rules
            )
            continue
        both = (arm.case for arm in (plan.arm(contrast.subject), plan.arm(contrast.baseline[0])))
        fits = all(blockers.fits(described[c.hash], c, site.machine) for c in both)
        for rule in rules:
            yield _possibility(contrast, case, rule, pair, draws, site.fabric, fits=fits)


def unsaid(contrast: Contrast, rule: Threshold) -> str:
    """Return why no prediction is made for a threshold on this contrast, or an empty string."""
    if contrast.metric not in METRICS:
        return f"{contrast.metric} can only be measured, not predicted"
    if rule.at_least is None:
        return "an upper bound on speed rules nothing out"
    if len(contrast.baseline) != 1:
        return "its baseline consists of several concurrent training runs"
    return ""


def without_plan(
    thresholds: Sequence[Threshold],
    plans: Sequence[Plan],
    device: str,
    target: str,
) -> Iterator[RuleLeftOut]:
    """Yield the thresholds that apply to no contrast of these plans, with the reason."""
    subjects = [
        (plan.arm(contrast.subject).case, contrast) for plan in plans for contrast in plan.contrasts
    ]
    for rule in thresholds:
        if any(rule.about(case) and rule.metric == contrast.metric for case, contrast in subjects):
            continue
        why = f"no test of {target} measures it on this hardware"
        if rule.device not in (None, device):
            why = f"the threshold applies to {str(rule.device).upper()} ranks only"
        yield RuleLeftOut(rule=rule.name, case=rule.case, why=why)


def _shape(case: CaseSpec, described: Described, catalogue: Catalogue) -> Shape:
    shape = shape_of(case, described, catalogue)
    inner = shape.tensor * shape.context * shape.stages
    if inner > 1 or shape.kept is KeptStates.NODE_CUT:
        return shape
    return replace(shape, sent=sent_by({case.world_size: stated(described)}))


def _draws(case: CaseSpec, facts: ModelFacts | None, base: Shape, site: FabricSite) -> Array:
    """Return draws of all unknowns, in the range that published scaling sweeps have shown.

    The shape is (draws, unknowns). Raise ValueError if the FLOPs of the model or the peak of the
    device are unknown.
    """
    peak = site.peaks.get(case.dtype)
    if peak is None or facts is None or not facts.flops_per_sample:
        raise ValueError("the compute rate of the device is unknown")
    counted = base.flops / base.samples / facts.flops_per_sample
    rate = Belief(PEAK_SHARE.median * peak * counted, PEAK_SHARE.spread)
    beliefs = {**learned().beliefs, **site.beliefs, Unknown.RATE: rate}
    mean, spread = priors.vectors(beliefs, 1, True)
    mean[-1], spread[-1] = 0.0, 0.0
    normal = np.random.default_rng(SEED).standard_normal((NUM_DRAWS, len(mean)))
    return mean + normal * spread


def _possibility(
    contrast: Contrast,
    case: CaseSpec,
    rule: Threshold,
    pair: Sequence[Shape],
    draws: Array,
    fabric: Fabric,
    *,
    fits: bool,
) -> Possibility:
    bound, base, target = rule.at_least or 0.0, *pair

    def figures(times: float) -> Array:
        faster = replace(
            fabric,
            intra_bytes_per_s=fabric.intra_bytes_per_s * times,
            inter_bytes_per_s=fabric.inter_bytes_per_s * times,
        )
        step_s = terms.step_s(terms.facts(pair, (0, 0), faster, base.ranks), draws)
        rates = [shape.flops / shape.ranks / step_s[:, i] for i, shape in enumerate(pair)]
        efficiency: Array = rates[1] / rates[0]
        ranks = target.ranks / base.ranks
        return efficiency * ranks if contrast.metric == "speedup" else efficiency

    low, middle, high, best = np.quantile(figures(1.0), (LOW, 0.5, HIGH, BEST))
    chance = Chance.YES if low >= bound else Chance.OPEN
    if best < bound or not fits:
        chance = Chance.NO
    return Possibility(
        rule=rule.name,
        case=case.id,
        world=case.world,
        metric=contrast.metric,
        against=contrast.against,
        bound=bound,
        middle=float(middle),
        low=float(low),
        high=float(high),
        chance=chance,
        fits=fits,
        limiter=_limits(pair, draws, fabric),
        times=least(lambda times: float(np.median(figures(times))), bound),
    )


def _limits(pair: Sequence[Shape], draws: Array, fabric: Fabric) -> ForeseenTerm:
    """Return the term that costs most efficiency, at the median of the draws."""
    given = terms.facts(pair, (0, 0), fabric, pair[0].ranks)
    parts = {
        term: value[0]
        for term, value in terms.seconds(given, np.median(draws, axis=0)[None, :]).items()
    }
    work = np.array([shape.flops / shape.ranks for shape in pair])
    total = sum(parts.values())
    lost = {
        term: float((part[1] / work[1] - part[0] / work[0]) / (total[1] / work[1]))
        for term, part in parts.items()
    }
    return limiter({term: float(part[1] / total[1]) for term, part in parts.items()}, lost)
