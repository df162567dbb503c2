"""Recorded traces of every strategy family: two gloo ranks, torch 2.13."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.analysis.timeline import merge
from harness.analysis.timeline.close import ReconciledBudget, close
from harness.analysis.timeline.reader import Trace, read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.analysis.timeline.tallies import operators, ranges
from harness.analysis.timeline.views import ShownBudget
from harness.record import Term

HERE = Path(__file__).parent / "recorded"
FAMILIES = ("ddp", "fsdp", "gpipe", "1f1b", "compressed")


def traces_of(family: str) -> list[Trace]:
    return [read(HERE / f"{family}-rank{r}.json.gz") for r in (0, 1)]


def closed_of(traces: list[Trace]) -> ReconciledBudget:
    return close([sorted_lanes(t) for t in traces])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_terms_add_up_and_all_communication_is_divided(family: str) -> None:
    closed = closed_of(traces_of(family))
    budget = closed.budget
    assert budget.steps == 3 and [r.rank for r in budget.ranks] == [0, 1]
    for rank in budget.ranks:
        for k, whole in enumerate(rank.step_ns):
            assert sum(v[k] for v in rank.terms.values()) == whole
    assert not [u for u in budget.unsure if "divided" in u or "read" in u]
    assert budget.total_ns(Term.UNDIVIDED) == 0
    # 20 ms of each step are simulated compute inside operators; the rest is overhead of the step.
    assert 20e6 < budget.mean_ns(Term.COMPUTE) < budget.step_ns


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_its_characteristic_terms(family: str) -> None:
    traces = traces_of(family)
    budget = closed_of(traces).budget
    pipeline = family in ("gpipe", "1f1b")
    assert (budget.total_ns(Term.BUBBLE) > 0) == pipeline
    assert (budget.total_ns(Term.WAIT) > 0) == (not pipeline)
    assert 0 < budget.exposed_share <= budget.comm_share * (1 + 1e-12) < 1
    named = {r.name for r in ranges(traces)}
    wanted = {"batch", "optimizer", "forward", "backward", "step"}
    assert named >= wanted | ({"bucket"} if family == "compressed" else set())
    ranks = [sorted_lanes(trace) for trace in traces]
    assert operators(traces, ranks, budget.steps)[0].name in ("WaitBackward", "Wait")


def test_micro_batches_are_recorded_as_spans_on_every_stage() -> None:
    """PyTorch's 1F1B schedule itself records no spans for them."""
    for family in ("gpipe", "1f1b"):
        counts = {r.name: r.count for r in ranges(traces_of(family))}
        # 2 ranks, 3 steps, and 4 micro-batches.
        assert counts["forward"] == counts["backward"] == 2 * 3 * 4


def test_fsdp_shows_exposed_communication_and_more_launches_than_ddp() -> None:
    """FSDP over gloo waits inside annotations; counted as compute, they would hide all
    communication.
    """
    budget = closed_of(traces_of("fsdp")).budget
    assert budget.exposed_share > 0.1
    assert budget.mean_ns(Term.LAUNCH) > closed_of(traces_of("ddp")).budget.mean_ns(Term.LAUNCH)


@pytest.mark.parametrize("family", FAMILIES)
def test_communication_of_a_single_trace_is_not_divided(family: str) -> None:
    budget = close([sorted_lanes(traces_of(family)[1])]).budget
    assert "only 1 of 2 traces were given" in budget.unsure[0]
    assert budget.total_ns(Term.UNDIVIDED) > 0 and Term.WAIT not in budget.ranks[0].terms


def test_the_merged_trace_has_every_rank_and_the_budget_as_tracks(tmp_path: Path) -> None:
    traces = traces_of("gpipe")
    tracks = [sorted_lanes(t) for t in traces]
    closed = close(tracks, {1: -5_000_000}, 0)  # Rank 1's clock is assumed to be 5 ms ahead.
    path = tmp_path / "merged.json.gz"
    reading = {"time_ns": int(traces[0].start[0]), "index": 0, "name": "H200", "power_w": 512.5}
    window = ShownBudget(traces=traces, lanes=tracks, closed=closed, readings=[reading])
    merge.write(path, {"case": lambda: window})
    doc = json.loads(gzip.decompress(path.read_bytes()))
    base = doc["baseTimeNanoseconds"]
    for trace, lane in zip(traces, tracks, strict=True):
        of_rank = [e for e in doc["traceEvents"] if e["ph"] == "X" and e["pid"] == lane.rank]
        terms = [e for e in of_rank if e["cat"] == "budget"]
        assert len(of_rank) - len(terms) == len(trace.start)
        total = sum(round(e["dur"] * 1000) for e in terms)
        (rank,) = [r for r in closed.budget.ranks if r.rank == lane.rank]
        assert total == sum(rank.step_ns)
        first = min(round(e["ts"] * 1000) + base for e in of_rank if e["cat"] != "budget")
        assert first == int(trace.start[0]) - (5_000_000 if lane.rank else 0)
    (counter,) = [e for e in doc["traceEvents"] if e["ph"] == "C"]
    assert counter["args"] == {"power_w": 512.5} and counter["name"] == "GPU 0 power_w"
