"""A trace of a real H100: eager DDP of 350M parameters in autocast, 60 ms of sleep before each
step.

It has three steps of torch 2.11 with CUDA 13, without the fields that the reader ignores. The
budget is compared with sums over the trace's kernels that the tests compute.
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
#: Median step time (ms) of the same launch without a profiler, by the device's clock.
TIMED_MS = 71.0


@pytest.fixture(scope="module")
def budget() -> Budget:
    return close([sorted_lanes(read(FILE))]).budget


def kernels() -> list[tuple[float, float]]:
    """Return (begin, end) in us of everything that ran on the device."""
    events = json.loads(gzip.decompress(FILE.read_bytes()))["traceEvents"]
    ran = ("kernel", "gpu_memset", "gpu_memcpy")
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in ran)


def test_the_terms_of_a_device_step_add_up(budget: Budget) -> None:
    assert budget.device == "cuda" and budget.steps == 2, (
        "the first step only marks the start of the second"
    )
    (rank,) = budget.ranks
    for k, whole in enumerate(rank.step_ns):
        assert sum(values[k] for values in rank.terms.values()) == whole
    assert not budget.unsure and budget.total_ns(Term.UNDIVIDED) == 0


def test_compute_is_the_time_in_which_a_kernel_ran(budget: Budget) -> None:
    """All three steps compute the same, so one step's compute is a third of the union of all
    kernels.
    """
    busy_us, until = 0.0, 0.0
    for begin, end in kernels():
        busy_us += max(0.0, end - max(begin, until))
        until = max(until, end)
    assert budget.mean_ns(Term.COMPUTE) / 1e6 == pytest.approx(busy_us / 3 / 1e3, rel=0.01)
    assert budget.mean_ns(Term.COMPUTE) / 1e6 == pytest.approx(TIMED_MS, rel=0.03)


def test_sleep_of_the_host_counts_as_idle_and_not_as_communication(budget: Budget) -> None:
    """A single rank does not communicate, although DDP issues its all-reduces."""
    (rank,) = budget.ranks
    assert min(rank.terms[Term.IDLE]) / 1e6 > SLEPT_MS
    assert not any(
        budget.total_ns(t) for t in (Term.TRANSFER, Term.WAIT, Term.MOVE, Term.UNDIVIDED)
    )


def test_matrix_products_are_the_longest_operators(budget: Budget) -> None:
    """cuBLAS names its matrix products nvjet on sm_90."""
    trace = read(FILE)
    names = [o.name for o in operators([trace], [sorted_lanes(trace)], budget.steps)]
    assert all(name.startswith("nvjet_sm90") for name in names[:2]), names
