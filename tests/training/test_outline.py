"""Outlines: profiles of CPU ranks without operators still show waits, transfers and bubbles."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from harness.analysis.samples.figures import perturbation
from harness.analysis.timeline.close import budget_of, match, trace_path
from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import outline_lanes
from harness.cases import Window
from harness.record import Budget, Purpose, Term
from harness.record.budget import OUTLINE
from harness.record.store import Samples


def outline(launch: Any, case: str) -> tuple[Budget, Any]:
    world = launch(case, 2, Purpose.PROFILE, steps=12, cut=2, profiled=4, pairs=2)
    assert world.cause is None, world.cause
    folder = world.out.parent / "run"
    (folder / "launches").mkdir(parents=True)
    world.out.rename(folder / "launches" / "outlined")
    budget = budget_of(folder, "outlined", world.ranks, 4, talks=True)
    return budget, read(trace_path(folder, "outlined", 0))


def test_exchanges_of_a_mesh_are_matched_within_their_groups(launch: Any) -> None:
    """Gloo's ranges do not name a group, so those of ``dp`` and ``tp`` could be confused."""
    world = launch(
        "tensor_parallel/decoder-nano", 4, Purpose.PROFILE, mesh="dp:2,tp:2",
        steps=12, cut=2, profiled=4, pairs=2,
    )  # fmt: skip
    traces = [read(world.out / f"rank{rank}.trace.json.gz") for rank in range(4)]
    matched = match([outline_lanes(trace, rank) for rank, trace in enumerate(traces)])
    assert not matched.refused
    met = {frozenset(m.ops) for m in matched.meetings if 1 < len(m.ops) < 4}
    assert met == {frozenset(pair) for pair in ((0, 1), (2, 3), (0, 2), (1, 3))}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "compressed:topk"])
def test_waits_and_transfers_are_distinguished_from_work_without_operators(
    launch: Any, strategy: str
) -> None:
    budget, trace = outline(launch, f"{strategy}/mlp-small")
    assert budget.capture == OUTLINE and budget.steps == 4
    assert not trace.of_cat("cpu_op").any()
    assert not any("not divided" in why for why in budget.unsure)
    assert budget.total_ns(Term.COMPUTE) > 0
    assert budget.total_ns(Term.TRANSFER) + budget.total_ns(Term.WAIT) > 0, "nobody waited"
    assert budget.mean_ns(Term.COMPUTE) < budget.step_ns


def test_a_pipelines_bubbles_have_their_peers(launch: Any) -> None:
    """gloo's ranges do not name the peer, so the outline records it separately."""
    budget, _ = outline(launch, "pipeline/mlp-small")
    assert budget.total_ns(Term.BUBBLE) > 0
    assert Term.UNDIVIDED not in {Term(t) for r in budget.ranks for t in r.terms}


def test_the_profiler_writes_nothing_to_the_logs_of_ranks(launch: Any) -> None:
    """Torch's profiler warns about GPUs each time it is toggled, which must not fill logs."""
    world = launch("ddp/mlp-nano", 2, Purpose.PROFILE, steps=12, cut=2, profiled=4, pairs=2)
    assert not list(world.out.glob("*.log"))
    assert json.loads((world.out / "rank0.spans.json").read_text()), "spans are logged, too"


@pytest.mark.parametrize("factor", [1.0, 1.08])
def test_the_overhead_of_an_outline_is_measured_despite_drift(factor: float) -> None:
    """If steps get slower all the time, a later half must not look slowed by the profiler."""
    window = Window(steps=24, cut=4, profiled=8, pairs=5)
    on = [window.outlined(i) for i in range(24)]
    assert sum(on) == 8 + 5 and on[16:] == [True] * 8 and on[:6] == [False] * 6
    rng = np.random.default_rng(3)
    step_s = 0.03 * np.exp(0.02 * np.arange(24) + 0.005 * rng.standard_normal(24))
    step_s *= np.where(on, factor, 1.0)
    nothing = np.zeros(24)
    samples = Samples(
        marks_s=np.concatenate([[0.0], np.cumsum(step_s)]), loss=nothing, sample_ids=nothing,
        rss_bytes=nothing, step_s=step_s,
    )  # fmt: skip
    cost = perturbation([samples], window)
    assert cost.ratio == pytest.approx(factor, abs=0.01) and cost.low is not None
    assert (cost.low > 1.05) == (factor > 1.05) and math.isfinite(cost.low)
