"""From the traces that a profiled launch left to its budget."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from harness.analysis.timeline.close import ReconciledBudget, close
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.reader import Trace, read
from harness.analysis.timeline.sorting import lanes
from harness.analysis.timeline.views.tallies import operators
from harness.base.errors import ScaleproofError
from harness.cases import PROFILED, CaseSpec
from harness.record import Budget, Expected, RankRecord

#: Traces that are worth the processes which read them at once.
MANY = 4


def trace_path(folder: Path, launch: str, rank: int) -> Path:
    """Where a rank's trace lies in a run's folder."""
    return folder / "launches" / launch / f"rank{rank}.trace.json.gz"


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Traces of all ranks; of many on all cores, while no rank needs one.

    They are read before the next launch, not beside it: that one would be timed on fewer cores.
    """
    workers = min(len(paths), len(os.sched_getaffinity(0)))
    if len(paths) < MANY or workers < 2:
        return [read(path) for path in paths]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(read, paths))


def close_launch(
    folder: Path, launch: str, ranks: Sequence[RankRecord]
) -> tuple[list[Trace], list[Lanes], ReconciledBudget]:
    """Read every rank's trace and close the budget, on rank 0's clock."""
    traces = read_all([trace_path(folder, launch, rank.rank) for rank in ranks])
    rank_lanes = [lanes(trace, rank.rank) for trace, rank in zip(traces, ranks, strict=True)]
    offsets = {rank.rank: -rank.clock_offset_ns for rank in ranks}
    halves = [rank.clock_half_ns for rank in ranks if rank.clock_half_ns is not None]
    return traces, rank_lanes, close(rank_lanes, offsets, max(halves, default=0))


def budget_of(
    folder: Path, launch: str, ranks: Sequence[RankRecord], steps: int, talks: bool
) -> Budget:
    """The budget of a launch with the operators that took longest.

    ``steps`` were profiled, and in ``talks`` worlds every rank communicates. ScaleproofError where
    the traces do not show that: shares of what was not seen would be 0, and pass.
    """
    traces, rank_lanes, closed = close_launch(folder, launch, ranks)
    budget = closed.budget
    if budget.device == "cpu" and any(rank.device != "cpu" for rank in ranks):
        raise ScaleproofError(
            "its traces have no device activity: CUPTI is missing, or another tool holds it",
            where=launch,
            expected="kernels in the traces",
            fix="end nsys and DCGM profiling, or use --no-timeline",
        )
    for trace, rank in zip(traces, budget.ranks, strict=True):
        num_steps = len(rank.step_ns) + (
            budget.device == "cuda"
        )  # a device's first step is the anchor
        problem = trace.partial
        if num_steps != steps:
            problem = problem or f"has {num_steps} steps, expected {steps}"
        if talks and not sum(rank.comm_ns):
            problem = problem or "has no communication"
        if problem:
            raise ScaleproofError(f"the trace of rank {rank.rank}: {problem}", where=trace.path)
    return replace(budget, operators=operators(traces, rank_lanes, budget.steps))


def talks(case: CaseSpec, expected: Expected | None) -> bool:
    """Whether every rank of a case communicates in its steps; a script's may."""
    if expected is None:
        return False
    often = expected.period <= PROFILED
    return case.world_size > 1 and case.communicate and often and bool(expected.payload_bytes)
