"""A baseline that computes more per sample than its subject must not make the subject look better."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.judging.biases import faster_alone
from harness.cases import Device, Mode
from harness.record import LaunchRecord, Purpose, RunRecord, Status
from tests.editing import bound, even, judged, timed

SUBJECT = "efficiency@2/plain"


def working(times: float, schema: int = 9) -> Any:
    """Return an edit after which the baseline takes ``times`` the subject's CPU time per sample."""

    def edit(doc: Any) -> None:
        even(doc, 0.75)
        bound(doc, at_least=0.6)
        doc["schema"] = schema
        for arm, more in (("@2", 1.0), ("plain", times)):
            for x in timed(doc, arm):
                for rank in x["ranks"]:
                    rank["cpu_s"] = 0.01 * x["steps"]["count"] * more

    return edit


@pytest.mark.parametrize(
    ("times", "status"),
    [(0.5, Status.PASS), (1.0, Status.PASS), (1.4, Status.PASS), (1.7, Status.ERROR)],
)
def test_a_baseline_that_works_more_is_an_error(
    sample_run: RunRecord, times: float, status: Status
) -> None:
    verdict = judged(sample_run, working(times))[SUBJECT]
    assert verdict.status is status, verdict.detail
    assert ("more work than the same training" in verdict.detail) is (status is Status.ERROR)


def test_records_of_older_schemas_are_judged_without_this_check(sample_run: RunRecord) -> None:
    assert judged(sample_run, working(2.0, schema=8))[SUBJECT].status is Status.PASS


def waiting(least_s: float, busy: float | None = None, queued: float | None = None) -> Any:
    """Return an edit after which the baseline is idle for ``least_s`` of each step of 0.1 s.

    For a share ``queued`` of the time in which it does not compute, it is ready to run.
    """

    def edit(doc: Any) -> None:
        working(0.5)(doc)
        for arm, idle_s in (("@2", 0.02), ("plain", least_s)):
            for x in timed(doc, arm):
                for rank in x["ranks"]:
                    rank["throttled_s"] = 0.0
                    rank["cpu_s"] = rank["window_s"] - idle_s * x["steps"]["count"]
                    rank["busy_s"] = rank["cpu_s"] if busy is None else busy * rank["window_s"]
                    if queued is not None:
                        rank["waited_s"] = queued * (rank["window_s"] - rank["cpu_s"])

    return edit


@pytest.mark.parametrize(
    ("idle_s", "busy", "queued", "status"),
    [
        (0.0, None, None, Status.PASS),
        (0.03, None, None, Status.PASS),
        (0.06, None, None, Status.ERROR),
        (0.06, 1.0, None, Status.PASS),  # Other processes may have used its cores.
        (0.06, 1.0, 0.1, Status.ERROR),  # It was not waiting for a core.
        (0.06, 1.0, 1.0, Status.PASS),
        (0.06, None, 1.0, Status.ERROR),  # The cores were idle.
    ],
)
def test_a_baseline_that_waits_longer_is_an_error(
    sample_run: RunRecord, idle_s: float, busy: float | None, queued: float | None, status: Status
) -> None:
    """Check baselines that wait on idle cores and on busy ones."""
    verdict = judged(sample_run, waiting(idle_s, busy, queued))[SUBJECT]
    assert verdict.status is status, verdict.detail
    assert ("without waiting for a core" in verdict.detail) is (status is Status.ERROR)


@pytest.mark.parametrize(
    ("mode", "theirs", "times"),
    [
        (Mode.STRONG, (), 1.6),
        (Mode.STRONG, ("models",), 1.6),
        (Mode.STRONG, ("strategies",), 1.0),
        (Mode.WEAK, (), 1.0),
    ],
)
def test_a_smaller_batch_may_take_less_cpu_time_for_a_sample(
    sample_run: RunRecord, mode: Mode, theirs: tuple[str, ...], times: float
) -> None:
    """More than linear strong scaling is possible as far as the CPU time shows it."""
    case = SimpleNamespace(mode=mode, device=Device.CPU, script="", hash="case")
    launch = next(x for x in sample_run.launches if x.purpose is Purpose.TIMED)

    def taking(seconds: float) -> list[LaunchRecord]:
        ranks = tuple(replace(rank, cpu_s=seconds) for rank in launch.ranks)
        return [replace(launch, ranks=ranks)] * 2

    evidence: Any = SimpleNamespace(
        subject=case,
        arms=[SimpleNamespace(case=case)],
        run=SimpleNamespace(described={"case": SimpleNamespace(theirs=theirs)}),
        contrast=SimpleNamespace(subject="@2", baseline=("plain",)),
        timed_of=lambda names: taking(1.0 if "@2" in names else 1.6),
    )
    assert faster_alone(evidence) == pytest.approx(times)
