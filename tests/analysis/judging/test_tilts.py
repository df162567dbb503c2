"""What hits one arm more than the other decides nothing; what hits both alike, or little, does not."""

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
    for x in doc["launches"]:  # equal work takes equal CPU time
        for rank in x["ranks"] if x["steps"] else ():
            rank["cpu_s"] = 0.01 * x["steps"]["count"]


def loaded(arm: str, share: float) -> Any:
    def edit(doc: Any) -> None:
        planted(doc)
        for x in timed(doc, arm):
            x["foreign_load"] = share

    return edit


def test_a_quiet_run_is_decided(sample_run: RunRecord) -> None:
    assert judged(sample_run, planted)[SUBJECT].status is Status.PASS


def test_load_that_follows_the_baseline_passes_nothing(sample_run: RunRecord) -> None:
    """It makes the baseline slow: with that given back the ratio is 0.6."""
    verdict = judged(sample_run, loaded("plain", 0.2))[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "20% of the baseline's time" in verdict.detail and "up to 15.0 points" in verdict.detail


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_load_that_follows_the_subject_does_not_unmake_a_pass(
    sample_run: RunRecord, share: float
) -> None:
    """It can only have lowered the ratio."""
    verdict = judged(sample_run, loaded("@2", share))[SUBJECT]
    assert verdict.status is Status.PASS
    assert bool(verdict.doubt) is (share > 0.25), "who reads the figure is told"


@pytest.mark.parametrize(("share", "decided"), [(0.05, True), (0.2, False)])
def test_a_pass_stands_with_all_given_back_to_the_baseline(
    sample_run: RunRecord, share: float, decided: bool
) -> None:
    """0.75 where 0.7 is asked, with room for 5 % and no more."""

    def edit(doc: Any) -> None:
        planted(doc)
        for x in timed(doc, "@2") + timed(doc, "plain"):
            x["foreign_load"] = share

    assert (judged(sample_run, edit)[SUBJECT].status is Status.PASS) is decided


@pytest.mark.parametrize(
    ("arm", "share", "status"),
    [("@2", 0.05, Status.INCONCLUSIVE), ("plain", 0.9, Status.FAIL)],
)
def test_load_that_follows_the_subject_fails_nothing(
    sample_run: RunRecord, arm: str, share: float, status: Status
) -> None:
    """0.8 where 0.85 is asked. All that others used may have been of one rank's core: of two it is
    a tenth. What they took from the baseline can only have raised the ratio: it fails all the same.
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
        (1.0, 0.3, True),  # nothing beyond the best launch
        (4.0, 0.3, False),
        (4.0, 0.0, True),  # nobody is there: its own launches differ so
    ],
)
def test_what_neighbours_cost_through_caches_shows_in_the_cpu_time_of_a_step(
    sample_run: RunRecord, longer: float, load: float, decided: bool
) -> None:
    """A neighbour on the subject's other core left the baseline its own, and took its cache."""

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
def test_load_took_no_more_of_a_schedule_than_it_is_late(
    sample_run: RunRecord, late: float, decided: bool
) -> None:
    """A stand-in that kept its deadlines beside a busy neighbour lost nothing to it."""

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


def test_a_quota_that_holds_ranks_back_is_a_noisy_host(sample_run: RunRecord) -> None:
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


def test_stalls_beyond_the_windows_pass_nothing(sample_run: RunRecord) -> None:
    """Every 30th step takes eight times as long; the timed windows end at step 14."""

    def edit(doc: Any) -> None:
        planted(doc)
        for x in doc["launches"]:
            if x["purpose"] == "pilot" and x["arm"] == "@2":
                x["stalls"] = {"steps": [30], "share": 0.18}

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "stalls that the timed windows do not contain would take 18%" in verdict.detail


def test_lower_clocks_of_the_baseline_pass_nothing(sample_run: RunRecord) -> None:
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


def test_what_a_loaded_host_makes_impossible_is_not_an_error(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        planted(doc, 1.3, 0.85)
        for x in timed(doc, "plain"):
            x["foreign_load"] = 0.24

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)


def test_a_host_that_stood_still_is_noisy_not_wrong(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        planted(doc)
        timed(doc, "@2")[0]["wrong"] = ["slot too short: 3 deadlines of the schedule missed"]

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)


def test_more_ranks_than_cores_are_a_stand_in(sample_run: RunRecord) -> None:
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
def test_quotas_are_read_in_both_layouts(
    tmp_path: Path, files: dict[str, str], message: str, cpus: float | None, held: float | None
) -> None:
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(message + "\n")
    assert cores.quota_cpus(tmp_path / "root", tmp_path / "own") == cpus
    assert cores.throttled_s(tmp_path / "root", tmp_path / "own") == held
