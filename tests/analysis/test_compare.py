"""Comparing two runs: only cases that both measured count, and different machines are refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

from harness.analysis.compare import Reading, compare, mean_ratio
from harness.base.documents import from_doc, to_doc
from harness.base.errors import SpecError
from harness.interface.cli.main import main
from harness.record import RunRecord
from harness.record.store import load, save
from tests.editing import even, timed


@pytest.fixture
def again(sample: Path) -> RunRecord:
    return load(sample.with_name("ddp-nano-again"))


def edited(run: RunRecord, edit: Any) -> RunRecord:
    doc = to_doc(run)
    edit(doc)
    return from_doc(RunRecord, doc)


def test_a_run_against_itself_shows_no_change(sample_run: RunRecord) -> None:
    quiet = edited(sample_run, lambda doc: even(doc, 0.9))
    comparison = compare(quiet, quiet, "throughput")
    assert {r.reading for r in comparison.rows} == {Reading.SAME}
    assert comparison.mean == pytest.approx(1.0)
    assert comparison.differs == ()


def test_a_wide_interval_is_undecided_and_not_unchanged(sample_run: RunRecord) -> None:
    """A ratio of 0.92 [0.77, 1.09] may be 23 % slower, so it does not show that nothing changed."""
    comparison = compare(sample_run, sample_run, "throughput")
    assert {r.reading for r in comparison.rows} == {Reading.UNDECIDED}


def test_one_launch_per_case_is_too_few(sample_run: RunRecord) -> None:
    def first_only(doc: Any) -> None:
        later = [id(x) for arm in ("plain", "@1", "@2") for x in timed(doc, arm)[1:]]
        doc["launches"] = [x for x in doc["launches"] if id(x) not in later]
        for x in doc["launches"]:
            for r in x["ranks"]:
                r["window_s"] *= 3.5

    comparison = compare(sample_run, edited(sample_run, first_only), "throughput")
    assert {r.reading for r in comparison.rows} == {Reading.TOO_FEW}
    assert comparison.mean_low is None and comparison.mean_high is None, (
        "a single launch must not give an interval of zero width"
    )


def test_the_mean_of_one_case_has_the_interval_of_that_case(
    sample_run: RunRecord, again: RunRecord
) -> None:
    for row in compare(sample_run, again, "throughput").rows:
        assert mean_ratio([row]) == pytest.approx((row.ratio, row.low, row.high))


@pytest.mark.parametrize(("num_cases", "num_launches"), [(1, 2), (2, 3), (5, 4)])
def test_the_interval_of_a_mean_has_its_nominal_coverage(
    sample_run: RunRecord, num_cases: int, num_launches: int
) -> None:
    """Intervals of cases come from scipy; launches scatter by 3 %, and nothing changed between the
    runs.
    """
    like = compare(sample_run, sample_run, "throughput").rows[0]
    times = 300
    a, b = np.random.default_rng(7).normal(0.0, 0.03, (2, times, num_cases, num_launches))
    interval = ttest_ind(b, a, axis=-1, equal_var=False).confidence_interval(0.95)
    ratio = np.exp(b.mean(axis=-1) - a.mean(axis=-1))
    held = 0
    for drawn in zip(ratio, np.exp(interval.low), np.exp(interval.high), strict=True):
        rows = [
            dataclasses.replace(like, ratio=float(middle), low=float(low), high=float(high))
            for middle, low, high in zip(*drawn, strict=True)
        ]
        _, low_end, high_end = mean_ratio(rows)
        assert low_end is not None and high_end is not None
        held += low_end <= 1.0 <= high_end
    assert held / times >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / times)


@pytest.mark.parametrize(("factor", "status"), [(1.5, 1), (1.0, 0)])
def test_compare_can_fail_a_ci_pipeline_on_a_regression(
    sample: Path,
    sample_run: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    factor: float,
    status: int,
) -> None:
    def slower(doc: Any) -> None:
        for x in doc["launches"]:
            for r in x["ranks"]:
                r["window_s"] *= factor

    save(edited(sample_run, slower), tmp_path)
    command = ["compare", str(sample), str(tmp_path), "--metric", "throughput"]
    assert main(command) == 1, "the second run has no chain, so it does not verify"
    assert "NOT VERIFIED: it has no chain" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr("harness.analysis.verify.unsealed", lambda *a: "")
    assert main([*command, "--fail-on", "worse"]) == status
    assert main(command) == 0


def test_a_pipeline_does_not_pass_a_case_that_is_no_longer_measured(
    sample: Path,
    sample_run: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def drop(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["arm"] != "@2"]

    save(edited(sample_run, drop), tmp_path)
    monkeypatch.setattr("harness.analysis.verify.unsealed", lambda *a: "")
    gate = ["compare", "--metric", "throughput", "--fail-on", "worse"]
    assert main([*gate, str(sample), str(tmp_path)]) == 10
    assert "A only" in capsys.readouterr().out
    assert main([*gate, str(tmp_path), str(sample)]) == 0, (
        "a case that only B has is not a regression"
    )


def test_two_runs_of_one_machine_show_no_change(sample_run: RunRecord, again: RunRecord) -> None:
    assert compare(sample_run, again, "throughput").mean == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("metric", "reading"), [("throughput", Reading.FASTER), ("step_s", Reading.UNDECIDED)]
)
def test_a_faster_machine_is_read_as_better(
    sample_run: RunRecord, metric: str, reading: Reading
) -> None:
    def faster(doc: Any) -> None:
        for x in doc["launches"]:
            for r in x["ranks"]:
                r["window_s"] *= 0.7

    comparison = compare(sample_run, edited(sample_run, faster), metric)
    assert {r.reading for r in comparison.rows} == {reading}


def test_only_cases_of_both_runs_are_averaged(sample_run: RunRecord, again: RunRecord) -> None:
    def drop(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["arm"] != "@2"]

    comparison = compare(sample_run, edited(again, drop), "throughput")
    assert [r.case.world for r in comparison.rows if r.reading is Reading.ONLY_A] == ["2cpu"]
    assert not comparison.not_compared, "the row of the case reports it already"
    assert sum(r.ratio is not None for r in comparison.rows) == 2


def test_different_machines_are_refused_unless_forced(sample_run: RunRecord) -> None:
    other = edited(sample_run, lambda doc: doc["machine"].update(num_cores=64))
    with pytest.raises(SpecError, match=r"not comparable: hardware: 2core-.* \| 64core"):
        compare(sample_run, other, "throughput")
    forced = compare(sample_run, other, "throughput", force=True)
    assert "num_cores: 2 | 64" in forced.differs and len(forced.forced) == 1
    assert compare(sample_run, sample_run, "throughput").forced == ()


@pytest.mark.parametrize(
    ("variable", "alike"),
    [
        ("NCCL_ALGO", False),
        ("NCCL_IB_DISABLE", False),
        ("OMP_NUM_THREADS", False),
        ("NCCL_DEBUG", True),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", True),
        ("CUDA_VISIBLE_DEVICES", True),
    ],
)
def test_only_variables_that_can_change_speed_are_in_the_fingerprint(
    sample_run: RunRecord, variable: str, alike: bool
) -> None:
    other = edited(sample_run, lambda doc: doc["environment"].update({variable: "7"}))
    if alike:
        assert not compare(sample_run, other, "throughput").forced
    else:
        with pytest.raises(SpecError, match=f"{variable}: - | 7"):
            compare(sample_run, other, "throughput")


def test_different_software_is_reported_and_not_refused(sample_run: RunRecord) -> None:
    other = edited(sample_run, lambda doc: doc["software"].update(torch="2.99"))
    assert any("torch" in d for d in compare(sample_run, other, "throughput").differs)
