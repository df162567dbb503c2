"""A bias that could explain the result decides nothing; one that is equal for both arms, or small,
is harmless.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.host import cores
from harness.record import Reason, RunRecord, Status
from tests.editing import bound, confirm, even, judged, timed

SUBJECT = "efficiency@2/plain"


def planted(doc: Any, efficiency: float = 0.75, least: float = 0.7) -> None:
    even(doc, efficiency)
    bound(doc, at_least=least)
    for x in doc["launches"]:  # Equal work takes equal CPU time, so that CPU pressure adds no bias.
        for rank in x["ranks"] if x["steps"] else ():
            rank["cpu_s"] = 0.01 * x["steps"]["count"]


def loaded(arm: str, share: float) -> Any:
    def edit(doc: Any) -> None:
        planted(doc)
        for x in timed(doc, arm):
            x["foreign_load"] = share

    return edit


def test_a_run_without_load_is_decided(sample_run: RunRecord) -> None:
    assert judged(sample_run, planted)[SUBJECT].status is Status.PASS


def test_load_on_the_baseline_prevents_a_pass(sample_run: RunRecord) -> None:
    """The load slows the baseline; without it the ratio would be 0.6."""
    verdict = judged(sample_run, loaded("plain", 0.2))[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "20% of the baseline's time" in verdict.detail and "up to 15.0 points" in verdict.detail


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_load_on_the_subject_does_not_prevent_a_pass(sample_run: RunRecord, share: float) -> None:
    """The load can only have lowered the ratio."""
    verdict = judged(sample_run, loaded("@2", share))[SUBJECT]
    assert verdict.status is Status.PASS
    assert bool(verdict.doubt) is (share > 0.25), "a reader of the figure must see the caveat"


@pytest.mark.parametrize(("share", "decided"), [(0.05, True), (0.2, False)])
def test_a_pass_must_hold_if_the_baseline_had_lost_nothing(
    sample_run: RunRecord, share: float, decided: bool
) -> None:
    """The value is 0.75 and the bound 0.7, so there is room for 5 % and no more."""

    def edit(doc: Any) -> None:
        planted(doc)
        for x in timed(doc, "@2") + timed(doc, "plain"):
            x["foreign_load"] = share

    assert (judged(sample_run, edit)[SUBJECT].status is Status.PASS) is decided


@pytest.mark.parametrize(
    ("arm", "share", "status"),
    [("@2", 0.05, Status.INCONCLUSIVE), ("plain", 0.9, Status.FAIL)],
)
def test_load_on_the_subject_prevents_a_fail(
    sample_run: RunRecord, arm: str, share: float, status: Status
) -> None:
    """The value is 0.8 and the bound 0.85.

    All the load may have been on one of the subject's two cores, which makes it a tenth of the
    time. Load on the baseline can only have raised the ratio, so the result fails despite it.
    """

    def edit(doc: Any) -> None:
        planted(doc, 0.8, least=0.85)
        for x in timed(doc, arm):
            x["foreign_load"] = share
        confirm(doc)

    assert judged(sample_run, edit)[SUBJECT].status is status


@pytest.mark.parametrize(
    ("longer", "load", "decided"),
    [
        (1.0, 0.3, True),  # There is no more CPU time than in the best launch.
        (4.0, 0.3, False),
        (4.0, 0.0, True),  # Without other processes, the launches vary like this by themselves.
    ],
)
def test_cache_contention_shows_in_the_cpu_time_per_step(
    sample_run: RunRecord, longer: float, load: float, decided: bool
) -> None:
    """A process on the subject's other core left the baseline its core but used the shared cache."""

    def edit(doc: Any) -> None:
        planted(doc)
        for x in timed(doc, "@2"):
            x["foreign_load"] = load
        for number, x in enumerate(timed(doc, "plain")):
            x["foreign_load"] = 0.0
            for rank in x["ranks"]:
                rank["cpu_s"] *= longer if number % 2 else 1.0

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status is Status.PASS) is decided, verdict.detail


@pytest.mark.parametrize(("late", "decided"), [(0.0, True), (0.002, True), (0.3, False)])
def test_load_costs_simulated_compute_only_its_lateness(
    sample_run: RunRecord, late: float, decided: bool
) -> None:
    """Simulated compute that met its deadlines beside a busy process lost nothing to it."""

    def edit(doc: Any) -> None:
        planted(doc)
        for arm in ("plain", "@2"):
            for x in timed(doc, arm):
                x["foreign_load"] = 0.6 if arm == "plain" else 0.3
                for rank in x["ranks"]:
                    behind = late if arm == "plain" else 0.0
                    rank["planted_s"] = rank["window_s"] / x["steps"]["count"] / (1 + behind)

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status is Status.PASS) is decided, verdict.detail


def test_a_cpu_quota_makes_the_host_noisy(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        planted(doc, 0.5, 0.85)
        for x in timed(doc, "@2"):
            for r in x["ranks"]:
                r["throttled_s"] = 0.5 * r["window_s"]
        confirm(doc)

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "other processes or a CPU quota may have taken 5" in verdict.detail
    assert "a CPU quota held the ranks of @2 back for 50%" in verdict.doubt


def test_stalls_outside_of_the_timed_windows_prevent_a_pass(sample_run: RunRecord) -> None:
    """Every 30th step takes eight times as long, but the timed windows end at step 14."""

    def edit(doc: Any) -> None:
        planted(doc)
        for x in doc["launches"]:
            if x["purpose"] == "pilot" and x["arm"] == "@2":
                x["stalls"] = {"steps": [30], "share": 0.18}

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "stalls that the timed windows do not contain would take 18%" in verdict.detail


def test_lower_clocks_of_the_baseline_prevent_a_pass(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        planted(doc)
        for arm, mhz in (("@2", 1900), ("plain", 1500)):
            for x in timed(doc, arm):
                x["gpus"] = [
                    {"index": 0, "name": "H", "sm_clock_mhz": [mhz, mhz], "power_w": None,
                     "temp_c": None, "throttle": []}
                ]  # fmt: skip

    # Each arm's clocks are compared with the highest of both.
    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)


def test_an_implausible_result_on_a_loaded_host_is_not_an_error(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        planted(doc, 1.3, 0.85)
        for x in timed(doc, "plain"):
            x["foreign_load"] = 0.24

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)


def test_missed_deadlines_of_the_schedule_are_a_noisy_host(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        planted(doc)
        timed(doc, "@2")[0]["wrong"] = ["slot too short: 3 deadlines of the schedule missed"]

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)


def test_more_ranks_than_cores_are_labelled_oversubscribed(sample_run: RunRecord) -> None:
    case = sample_run.plans[0].arm("@2").case
    assert not sample_run.stand_ins(case)
    assert sample_run.stand_ins(case.at(sample_run.machine.num_cores + 1)) == {"oversubscribed"}


@pytest.mark.parametrize(
    ("files", "message", "cpus", "held"),
    [
        ({"a/cpu.max": "50000 100000", "cpu.max": "max 100000",
          "a/cpu.stat": "nr_throttled 3\nthrottled_usec 1500000"}, "0::/a", 0.5, 1.5),
        ({"cpu/x/cpu.cfs_quota_us": "150000", "cpu/x/cpu.cfs_period_us": "100000",
          "cpu/x/cpu.stat": "throttled_time 2000000000"}, "3:cpu:/x\n0::/", 1.5, 2.0),
        ({"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu:/x", None, None),
        ({}, "0::/", None, None),
    ],
    ids=["version 2", "version 1", "no quota", "nothing"],
)  # fmt: skip
def test_cpu_quotas_are_read_from_cgroups_v1_and_v2(
    tmp_path: Path, files: dict[str, str], message: str, cpus: float | None, held: float | None
) -> None:
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(message + "\n")
    assert cores.quota_cpus(tmp_path / "root", tmp_path / "own") == cpus
    assert cores.throttled_s(tmp_path / "root", tmp_path / "own") == held
