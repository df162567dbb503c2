"""Four real gloo ranks, whose clocks were moved by known times as if they were on four hosts."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.timeline.close import close
from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.record import Term

RECORDED = Path(__file__).parent / "recorded"
#: The time in ms that was subtracted from the clock of each rank.
MOVED_MS = {1: -3_000.0, 2: 1_000_000.0}
#: The waiting of all ranks in a step, in ms, on one clock.
WAIT_MS = 257.0


def test_the_ends_of_collectives_correct_clocks_of_several_hosts() -> None:
    traces = [read(RECORDED / f"four_clocks_rank{rank}.json.gz") for rank in range(4)]
    closed = close([sorted_lanes(trace, i) for i, trace in enumerate(traces)])
    assert closed.offsets_ns.keys() == MOVED_MS.keys()
    budget = closed.budget
    assert budget.clock_ns is not None and budget.clock_ns < 0.05 * budget.step_ns
    for rank, moved_ms in MOVED_MS.items():
        assert abs(closed.offsets_ns[rank] / 1e6 - moved_ms) <= budget.clock_ns / 1e6
    waited_ms = sum(rank.mean_ns(Term.WAIT) for rank in budget.ranks) / 1e6
    assert abs(waited_ms / WAIT_MS - 1) < 0.05
    assert not [text for text in budget.unsure if "by durations alone" in text]


def test_the_interval_of_the_wait_contains_the_true_wait() -> None:
    traces = [read(RECORDED / f"four_clocks_rank{rank}.json.gz") for rank in range(4)]
    lanes = [sorted_lanes(trace, i) for i, trace in enumerate(traces)]
    budget = close(lanes).budget
    assert budget.wait_ns is not None
    low, high = (4 * end / 1e6 for end in budget.wait_ns)
    assert low < WAIT_MS < high and high - low < WAIT_MS / 2


def test_waits_are_estimated_by_durations_if_clocks_are_too_uncertain() -> None:
    traces = [read(RECORDED / f"four_clocks_rank{rank}.json.gz") for rank in range(4)]
    lanes = [sorted_lanes(trace, i) for i, trace in enumerate(traces)]
    wrong = {rank: round(1e6 * (moved + 60.0 * rank)) for rank, moved in MOVED_MS.items()}
    budget = close(lanes, wrong, clock_ns=round(120e6)).budget
    waited_ms = sum(rank.mean_ns(Term.WAIT) for rank in budget.ranks) / 1e6
    assert abs(waited_ms / WAIT_MS - 1) < 0.2, "the shortest duration includes some waiting"
    assert any("clocks agree within 120.00 ms only" in text for text in budget.unsure)
    for rank in budget.ranks:
        for step, whole in enumerate(rank.step_ns):
            assert sum(term[step] for term in rank.terms.values()) == whole
