"""Simulate steps event by event: pipelines, buckets during a backward, and gathered layers."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight.physics.schedules import (
    Durations,
    PipelineSchedule,
    StageWork,
    orders,
)

Array = NDArray[np.float64]
#: Two instants that differ by less than this share of a micro-batch's time count as one.
_SAME = 1e-9


def pipeline_s(
    schedule: PipelineSchedule, stages: int, micros: int, took: Durations, chunks: int = 1
) -> float:
    """Return the seconds that the busiest stage takes from its first work to its last.

    This is the length of a step, because a stage may begin the next step while others end this one.
    """
    if schedule is PipelineSchedule.ZERO_1P:
        return _choosing(stages, micros, took, stages, 0.5)
    if schedule is PipelineSchedule.ZERO_2P:
        return _choosing(stages, micros, took, 3 * stages, 0.0)
    return _in_order(orders(schedule, stages, micros, chunks), took, chunks)


@lru_cache(maxsize=4096)
def units(
    schedule: PipelineSchedule, stages: int, micros: int, took: Durations, chunks: int = 1
) -> float:
    """Return the length of a pipeline's step, in micro-batches.

    It would be ``micros`` if the pipeline had no bubble and no hops between stages. Once the
    pipeline has been filled a few times, every further group of ``stages`` micro-batches takes the
    same time. Longer steps are therefore extrapolated from simulated shorter ones. Interleaved
    stages process whole groups of ``stages`` micro-batches (Megatron-LM refuses other numbers). A
    remainder is assumed to add no bubble.
    """
    if schedule is PipelineSchedule.INTERLEAVED and (
        left := micros - max(1, micros // stages) * stages
    ):
        return units(schedule, stages, micros - left, took, chunks) + left
    full, rest = divmod(micros, stages)
    most = 6
    if full <= most:
        return pipeline_s(schedule, stages, micros, took, chunks) / took.total
    near = pipeline_s(schedule, stages, (most - 1) * stages + rest, took, chunks)
    far = pipeline_s(schedule, stages, most * stages + rest, took, chunks)
    return (far + (full - most) * (far - near)) / took.total


def _in_order(order: Sequence[Sequence[StageWork]], took: Durations, chunks: int) -> float:
    """Return the seconds of stages that work in a fixed order and wait for missing inputs."""
    stages = len(order)
    last = stages * chunks - 1
    cost = {"F": took.forward / chunks, "B": (took.backward + took.weights) / chunks}
    done: dict[StageWork, list[float]] = defaultdict(lambda: [-1.0] * stages)
    free = [0.0] * stages
    place = [0] * stages
    waits = dict[tuple[int, StageWork], int]()
    ready = list(range(stages))
    while ready:
        stage = ready.pop()
        while place[stage] < len(order[stage]):
            work = order[stage][place[stage]]
            source = _source(work, stage, stages, last)
            begin = free[stage]
            if source is not None:
                at = done[source[1]][source[0]]
                if at < 0:
                    waits[source] = stage
                    break
                begin = max(begin, at + (took.hop if source[0] != stage else 0.0))
            free[stage] = done[work][stage] = begin + cost[work.kind]
            place[stage] += 1
            if (woken := waits.pop((stage, work), None)) is not None:
                ready.append(woken)
    if place != [len(todo) for todo in order]:
        raise AssertionError("the schedule deadlocks: a stage waits for its own output")
    return max(free)


def _source(work: StageWork, stage: int, stages: int, last: int) -> tuple[int, StageWork] | None:
    """Return the (stage, work) that produces the input of a piece of work, or None."""
    virtual = work.chunk * stages + stage
    if work.kind == "F":
        before = virtual - 1
        return (
            None if before < 0 else (before % stages, StageWork("F", work.micro, before // stages))
        )
    if virtual == last:
        return stage, StageWork("F", work.micro, work.chunk)
    after = virtual + 1
    return after % stages, StageWork("B", work.micro, after // stages)


def _choosing(stages: int, micros: int, took: Durations, most: int, patience: float) -> float:
    """Return the seconds of stages that choose their next work.

    Each stage prefers the gradient of an input, then a forward, then gradients of weights. ``most``
    is the number of micro-batches whose activations a stage may hold. Computing the gradient of the
    input releases half of the activations of a micro-batch. If a stage could only compute gradients
    of weights, it waits for preferred work that arrives soon. Soon is the share ``patience`` of the
    time that the gradients of weights take.
    """
    arrived: dict[str, list[list[float]]] = {kind: [[] for _ in range(stages)] for kind in "FB"}
    arrived["F"][0] = [0.0] * micros
    num = {kind: [0] * stages for kind in "FBW"}
    free = [0.0] * stages
    began = [-1.0] * stages
    wakes = [(0.0, stage) for stage in range(stages)]
    close = _SAME * took.total
    while wakes:
        now, stage = heapq.heappop(wakes)
        if free[stage] > now + close or num["W"][stage] == micros:
            continue
        kept = num["F"][stage] - (num["B"][stage] + num["W"][stage]) / 2
        coming = [
            (queue[num[kind][stage]], kind)
            for kind, queue in (("B", arrived["B"][stage]), ("F", arrived["F"][stage]))
            if num[kind][stage] < len(queue) and (kind == "B" or kept <= most - 1)
        ]
        does = next((kind for at, kind in coming if at <= now + close), "")
        if not does and num["B"][stage] > num["W"][stage]:
            soon = any(at - now <= patience * took.weights for at, _ in coming)
            does = "" if soon and patience else "W"
        if not does:
            continue  # the next arrival of an input wakes the stage
        began[stage] = now if began[stage] < 0 else began[stage]
        free[stage] = end = now + took.of(does)
        num[does][stage] += 1
        heapq.heappush(wakes, (end, stage))
        if (sent := _sent(does, stage, stages)) is not None:
            to, kind = sent
            arrived[kind][to].append(end + (took.hop if to != stage else 0.0))
            heapq.heappush(wakes, (arrived[kind][to][-1], to))
    if num["W"] != [micros] * stages:
        raise AssertionError("the schedule deadlocks: a stage waits for its own output")
    return max(end - begin for begin, end in zip(began, free, strict=True))


def _sent(does: str, stage: int, stages: int) -> tuple[int, str] | None:
    """Return the stage that receives the output of a piece of work, and the kind of its next work.

    Return None if no stage needs the output.
    """
    if does == "F":
        return (stage, "B") if stage == stages - 1 else (stage + 1, "F")
    return (stage - 1, "B") if does == "B" and stage > 0 else None


def buckets_s(ready_s: Sequence[Array], exchange_s: Sequence[Array], backward_s: Array) -> Array:
    """Return when a backward and its exchanges end; each bucket is sent once it is full, in order.

    Entries may be arrays of one common shape. Each element is a step, so one call
    simulates many steps.
    """
    free = np.zeros_like(backward_s)
    for ready, cost in zip(ready_s, exchange_s, strict=True):
        free = np.maximum(ready, free) + cost
    return np.maximum(backward_s, free)


def gathered_s(
    forward_s: Array, backward_s: Array, gather_s: Array, scatter_s: Array, layers: int
) -> Array:
    """Return the seconds of a sharded step of equal layers; the arguments are seconds of one layer.

    Each layer is gathered while the one before it computes. Gathers and scatters share one stream.
    During the backward the gradients of the previous layer are scattered, too. Arguments may be
    arrays of one common shape.
    """
    gathered = stream = gather_s
    compute = np.zeros_like(forward_s)
    for layer in range(layers):
        begin = np.maximum(compute, gathered)
        if layer < layers - 1:
            gathered = stream = np.maximum(stream, begin) + gather_s
        compute = begin + forward_s
    for layer in reversed(range(layers)):
        begin = np.maximum(compute, gathered)
        if layer > 0:
            gathered = stream = np.maximum(stream, begin) + gather_s
        compute = begin + backward_s
        stream = np.maximum(stream, compute) + scatter_s
    return stream
