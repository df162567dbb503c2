"""Rules on shares of the step are judged on profiled launches only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.record import Reason, RunRecord, Status
from harness.record.store import load
from tests.editing import even, judged

SAMPLE = Path(__file__).parents[3] / "tests" / "golden" / "samples" / "ddp-nano"
RULE = {
    "name": "exposed", "case": "ddp/*", "metric": "exposed_comm_share", "at_least": None,
    "at_most": 0.25, "unit": "1", "source": "requirement", "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> RunRecord:
    return load(SAMPLE)


def bounded(doc: Any, share: float, launches: int = 8, perturbation: float = 1.01) -> None:
    """Add a rule, and profiled launches of two ranks whose exposed transfer is this share of a
    step.
    """
    even(doc)
    doc["thresholds"].append(RULE)
    profiled = [x for x in doc["launches"] if x["purpose"] == "profile"]
    (model,) = [x for x in profiled if x["arm"] == "@2"]
    doc["launches"] = [x for x in doc["launches"] if x["purpose"] != "profile"]
    for turn in range(launches):
        ranks = []
        for rank in model["budget"]["ranks"]:
            steps = rank["step_ns"]
            transfer = [round(s * (share + 0.001 * (-1) ** turn)) for s in steps]
            idle = [s - t for s, t in zip(steps, transfer, strict=True)]
            ranks.append({**rank, "terms": {"exposed_transfer": transfer, "host_idle": idle}})
        doc["launches"].append(
            {
                **model,
                "launch": f"p{turn}",
                "turn": turn,
                "block": turn // 2,
                "perturbation": perturbation,
                "budget": {**model["budget"], "ranks": ranks},
            }  # fmt: skip
        )


@pytest.mark.parametrize(
    ("share", "status"),
    [(0.20, Status.PASS), (0.249, Status.INCONCLUSIVE), (0.30, Status.INCONCLUSIVE)],
)
def test_a_share_is_judged_like_any_other_metric(
    run: RunRecord, share: float, status: Status
) -> None:
    """The last bound would give a FAIL if a second set of profiled launches confirmed it."""
    verdict = judged(run, lambda doc: bounded(doc, share))["exposed_comm_share@2"]
    assert verdict.status is status and verdict.value == pytest.approx(share, abs=0.001)
    assert verdict.n == 8 and set(verdict.launches) == {f"p{i}" for i in range(8)}
    if share == 0.30:
        assert verdict.reason is Reason.UNCONFIRMED


def test_a_share_is_not_judged_if_the_profiler_slowed_the_step(run: RunRecord) -> None:
    verdict = judged(run, lambda doc: bounded(doc, 0.2, perturbation=1.2))["exposed_comm_share@2"]
    assert verdict.status is Status.INCONCLUSIVE and verdict.reason is Reason.PERTURBED
    assert "1.20x" in verdict.detail and "larger model" in verdict.detail


def test_one_profiled_launch_or_none_does_not_pass(run: RunRecord) -> None:
    verdict = judged(run, lambda doc: bounded(doc, 0.2, launches=1))["exposed_comm_share@2"]
    assert verdict.status is Status.INCONCLUSIVE and verdict.reason is Reason.TOO_FEW_PAIRS
    none = judged(run, lambda doc: bounded(doc, 0.2, launches=0))["exposed_comm_share@2"]
    assert none.status is Status.INCONCLUSIVE and "needs a profiled launch" in none.detail


def test_profiled_launches_do_not_change_timed_verdicts(run: RunRecord) -> None:
    with_them = judged(run, lambda doc: bounded(doc, 0.2))["efficiency@2/plain"]
    without = judged(run, lambda doc: bounded(doc, 0.2, launches=0))["efficiency@2/plain"]
    assert with_them == without
