"""Find which change of a knob would reach an efficiency, or that no setting of the knob does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from harness.features.foresight import terms
from harness.features.foresight.infer import Posterior
from harness.features.foresight.shapes import KeptStates, Shape

#: Largest factor by which a knob is increased.
MOST_TIMES = 64.0


class Knob(StrEnum):
    BANDWIDTH = "bandwidth between nodes"
    BATCH = "samples in a micro-batch"
    MICROS = "micro-batches"
    SHARDS = "sharding inside nodes alone"


@dataclass(frozen=True, kw_only=True)
class LeverResult:
    """The change of one knob that reaches an efficiency.

    ``times`` is the factor by which the knob must be increased, or None if no setting is enough.
    ``best`` is the highest efficiency that the knob reaches. Sharding can only be on or off, so its
    factor is 1 if it is enough.
    """

    knob: Knob
    times: float | None
    best: float


def hold(known: Posterior, base: Shape, target: Shape, efficiency: float) -> list[LeverResult]:
    """Return for each knob the setting that reaches ``efficiency`` at the target.

    Only this knob is changed, and only at the target, not at the base. Efficiency counts useful
    work, so a larger batch counts as more work.
    """
    (base_s,) = terms.step_s(known.facts([base]), known.mode[None, :])[0]
    base_rate = base.rate(base_s)

    def reached(knob: Knob, times: float) -> float:
        shape = target
        fabric = known.fabric
        if knob is Knob.BANDWIDTH:
            fabric = replace(fabric, inter_bytes_per_s=fabric.inter_bytes_per_s * times)
        elif knob is Knob.BATCH:
            shape = replace(target, micro_batch=target.micro_batch * times)
        elif knob is Knob.SHARDS:
            shape = replace(target, kept=KeptStates.NODE_CUT, sent=())
        else:
            shape = replace(target, micros=max(1, round(target.micros * times)))
        (step_s,) = terms.step_s(known.facts([shape], fabric), known.mode[None, :])[0]
        return shape.rate(step_s) / base_rate

    spread = target.kept is KeptStates.ALL_CUT and target.replicas > known.fabric.per_node
    knobs = [k for k in Knob if k is not Knob.SHARDS or spread]
    return [_held(knob, partial(reached, knob), efficiency) for knob in knobs]


def _held(knob: Knob, reached: Callable[[float], float], efficiency: float) -> LeverResult:
    return LeverResult(knob=knob, times=least(reached, efficiency), best=reached(MOST_TIMES))


def least(reached: Callable[[float], float], wanted: float) -> float | None:
    """Return the smallest factor from 1 to MOST_TIMES that reaches ``wanted``, or None if none
    does.

    The factor is found by bisection of its logarithm, because increasing a knob never lowers the
    result.
    """
    if reached(MOST_TIMES) < wanted:
        return None
    if reached(1.0) >= wanted:
        return 1.0
    low = 0.0
    high = float(np.log(MOST_TIMES))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(np.exp(middle)) >= wanted else (middle, high)
    return float(np.exp(high))


@dataclass(frozen=True, kw_only=True)
class Knee:
    """A knee of the scaling curve: from ``ranks`` on, ``term`` is the largest overhead instead of
    another one.
    """

    ranks: int
    term: terms.ForeseenTerm


def knee(known: Posterior, target: Shape, most_ranks: int = 65536) -> Knee | None:
    """Return the size at which another term becomes the largest overhead.

    Sizes are doublings of the largest calibrated size, and each rank keeps the target's shape.
    Return None if the same overhead stays the largest.
    """
    inner = target.tensor * target.context * target.stages
    first = max(inner, *(shape.ranks for shape in known.shapes))
    first += -first % inner
    sizes = [first * 2**i for i in range(32) if first * 2**i <= most_ranks]
    if not sizes:
        return None
    shapes = [replace(target, ranks=size) for size in sizes]
    shares = terms.seconds(known.facts(shapes), known.mode[None, :])
    del shares[terms.ForeseenTerm.COMPUTE], shares[terms.ForeseenTerm.GROWTH]
    largest = np.argmax([value[0] for value in shares.values()], axis=0)
    changed = np.flatnonzero(largest != largest[0])
    if not len(changed):
        return None
    return Knee(ranks=sizes[changed[0]], term=list(shares)[largest[changed[0]]])
