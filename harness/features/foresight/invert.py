"""Finds what would hold an efficiency: how much of which knob, or that the knob can't."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from harness.features.foresight import terms
from harness.features.foresight.infer import Posterior
from harness.features.foresight.shapes import KeptStates, Shape

#: A knob is turned up to so many times of what it is.
MOST_TIMES = 64.0


class Knob(StrEnum):
    BANDWIDTH = "bandwidth between nodes"
    BATCH = "samples in a micro-batch"
    MICROS = "micro-batches"
    SHARDS = "sharding inside nodes alone"


@dataclass(frozen=True, kw_only=True)
class Held:
    """By how much a knob must be turned; ``times`` is None where no setting is enough.

    ``best`` is the efficiency that the knob reaches at most. Sharding is turned on or off: 1 where
    that is enough.
    """

    knob: Knob
    times: float | None
    best: float


def hold(known: Posterior, base: Shape, target: Shape, efficiency: float) -> list[Held]:
    """For each knob, what gives ``efficiency`` at the target, all else as it is.

    The base stays what it is. Efficiency counts useful work, so a larger batch is more work.
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


def _held(knob: Knob, reached: Callable[[float], float], efficiency: float) -> Held:
    return Held(knob=knob, times=least(reached, efficiency), best=reached(MOST_TIMES))


def least(reached: Callable[[float], float], wanted: float) -> float | None:
    """The smallest factor from 1 to MOST_TIMES that reaches what is wanted, None where none does.

    By bisection of the logarithm: a knob that is turned up never lowers what is reached.
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
    """From ``ranks`` on ``term`` takes most of what is no compute; before that, another one did."""

    ranks: int
    term: terms.ForeseenTerm


def knee(known: Posterior, target: Shape, most_ranks: int = 65536) -> Knee | None:
    """Where another term becomes the largest, by doublings from the largest calibrated size.

    None where one overhead stays the largest. The shape of a rank stays the target's.
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
