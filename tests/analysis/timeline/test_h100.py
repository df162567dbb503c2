"""A trace of a real H100: eager DDP of 350M parameters in autocast, 60 ms of sleep before each step.

Three steps of torch 2.11 with CUDA 13, fields that nobody reads left out. What is said of it is
held against sums over its kernels that are made here.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.analysis.timeline.close import close
from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.analysis.timeline.tallies import operators
from harness.record import Budget, Term

FILE = Path(__file__).parent / "recorded" / "h100-sleep-rank0.json.gz"
SLEPT_MS = 60
#: Median of the launch's own steps without a profiler, by the device's clock: ms.
TIMED_MS = 71.0


@pytest.fixture(scope="module")
def budget() -> Budget:
    return close([sorted_lanes(read(FILE))]).budget


def kernels() -> list[tuple[float, float]]:
    """(begin, end) of everything that ran on the device; us."""
    events = json.loads(gzip.decompress(FILE.read_bytes()))["traceEvents"]
    ran = ("kernel", "gpu_memset", "gpu_memcpy")
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in ran)


def test_the_budget_of_a_device_closes(budget: Budget) -> None:
    assert budget.device == "cuda" and budget.steps == 2, "the first step is the anchor"
    (rank,) = budget.ranks
    for k, whole in enumerate(rank.step_ns):
        assert sum(values[k] for values in rank.terms.values()) == whole
    assert not budget.unsure and budget.total_ns(Term.UNDIVIDED) == 0


def test_compute_is_the_time_in_which_a_kernel_ran(budget: Budget) -> None:
    """All three steps compute alike, so a third of the union of all kernels is one step's."""
    busy_us, until = 0.0, 0.0
    for begin, end in kernels():
        busy_us += max(0.0, end - max(begin, until))
        until = max(until, end)
    assert budget.mean_ns(Term.COMPUTE) / 1e6 == pytest.approx(busy_us / 3 / 1e3, rel=0.01)
    assert budget.mean_ns(Term.COMPUTE) / 1e6 == pytest.approx(TIMED_MS, rel=0.03)


def test_sleep_of_the_host_is_idleness_and_no_communication(budget: Budget) -> None:
    """One rank communicates with nobody, although DDP issues its all-reduces."""
    (rank,) = budget.ranks
    assert min(rank.terms[Term.IDLE]) / 1e6 > SLEPT_MS
    assert not any(
        budget.total_ns(t) for t in (Term.TRANSFER, Term.WAIT, Term.MOVE, Term.UNDIVIDED)
    )


def test_matrix_products_took_longest(budget: Budget) -> None:
    """nvjet is how cuBLAS calls its products on sm_90."""
    trace = read(FILE)
    names = [o.name for o in operators([trace], [sorted_lanes(trace)], budget.steps)]
    assert all(name.startswith("nvjet_sm90") for name in names[:2]), names
