"""False passes that a reviewer found who had read the documentation and not the checks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness import scaling
from harness.analysis.audit import twice
from harness.analysis.compare import Reading, mean_ratio, side_by_side
from harness.analysis.judging.verdicts import verdicts
from harness.analysis.verify import passed_by_older_rules, rejudge, verify
from harness.base.documents import from_doc, to_doc
from harness.base.errors import SpecError
from harness.base.programs import MARK
from harness.cases import Catalogue, Device, Reach, Site
from harness.cases.targets import bounds_of, plans_of
from harness.interface.cli.main import main
from harness.interface.export import openmetrics
from harness.interface.offered import again
from harness.interface.report import screen
from harness.record import LaunchRecord, Purpose, RunRecord, Status
from harness.record.store import load
from tests.editing import bound, change

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


def of_rule(run: RunRecord, name: str) -> Status:
    return next(verdict.status for verdict in run.verdicts if verdict.rule == name)


def near_bound(run: RunRecord) -> RunRecord:
    """Return a run with four pairs that clear their bound by 3 %.

    An unseen slow half of the launches could miss the bound, which older rules did not consider.
    """
    doc = json.loads(json.dumps(to_doc(run)))
    for launch in (x for x in doc["launches"] if x["purpose"] in ("pilot", "timed")):
        launch.update(foreign_load=0.01, stalls={"steps": [], "share": 0.0})
        efficiency = 0.9 if launch["arm"] == "@2" else 1.0
        for rank in launch["ranks"]:
            rank["throttled_s"] = 0.0
            rank["window_s"] = (1 + 0.002 * (-1) ** launch["turn"]) / efficiency
            rank["window_s"] *= launch["steps"]["count"] / 10
        launch["steadiness"] = {"drift": 0.0, "t": 0.0, "mser": 0, "steady": True}
    bound(doc, at_least=0.9 / 1.03)
    return from_doc(RunRecord, doc)


def test_new_rules_are_judged_by_todays_judge_for_any_claimed_schema(
    sample_run: RunRecord,
) -> None:
    run = near_bound(sample_run)
    by_its_day = {verdict.rule: verdict.status for verdict in verdicts(run)}
    assert by_its_day["cpu_ddp_weak"] is Status.PASS
    assert of_rule(rejudge(run, run.thresholds), "cpu_ddp_weak") is Status.INCONCLUSIVE


def test_a_pass_that_only_an_older_schema_gives_does_not_verify(sample_run: RunRecord) -> None:
    run = near_bound(sample_run)
    older = dataclasses.replace(run, verdicts=verdicts(run))
    assert any("by the rules of schema 6 alone" in why for why in passed_by_older_rules(older))
    assert not list(passed_by_older_rules(sample_run)), (
        "the verdicts of the unchanged record must also pass today"
    )


def test_a_run_without_a_chain_is_not_verified(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "chain.jsonl").unlink()
    change(copy, lambda doc: doc.update(head=""))
    assert main(["verify", str(copy)]) == 1
    assert "NOT VERIFIED" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--nonce", ""], ["--given", "2026-11-25T17:52Z"]])
def test_an_empty_nonce_is_refused(
    sample: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(sample), *words]) == 4
    assert "--nonce TEXT" in capsys.readouterr().err


def test_documents_of_an_unverified_run_are_marked(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "chain.jsonl").unlink()
    assert main(["report", str(copy), "--json", "--summary"]) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["exit"] == 1 and document["headline"].startswith("NOT VERIFIED")
    assert "NOT VERIFIED" in printed.err
    assert main(["report", str(copy), "--json"]) == 1
    assert any("NOT VERIFIED" in note for note in json.loads(capsys.readouterr().out)["notes"])
    gauges = openmetrics([load(copy)], ["no chain"])
    assert 'status="NOT VERIFIED"' in gauges and 'status="PASS"' not in gauges


def measured(decorated: Any) -> None:
    for recipe in getattr(decorated, MARK):
        recipe(SITE)


def test_a_bound_without_a_world_size_is_refused() -> None:
    with pytest.raises(SpecError, match="requires nothing"):
        measured(scaling("ddp/mlp-nano", efficiency={})(lambda verdict: None))


def test_a_second_scaling_is_refused() -> None:
    once = scaling("ddp/mlp-nano", efficiency=1.09)(lambda verdict: None)
    with pytest.raises(SpecError, match="@scaling twice"):
        measured(scaling("ddp/mlp-nano", efficiency=0.001)(once))


def test_a_required_world_size_that_was_not_measured_is_reported(sample_run: RunRecord) -> None:
    usual = next(rule for rule in sample_run.thresholds if rule.name == "cpu_ddp_weak")
    of_test = dataclasses.replace(usual, name="test_b.py::test_three efficiency of 3", world=(3,))
    run = dataclasses.replace(sample_run, thresholds=(*sample_run.thresholds, of_test))
    lines = " ".join(" ".join(screen.lines(run, Path("run"), "again", 80)).split())
    assert "required by test_b.py::test_three efficiency of 3" in lines
    assert "and not measured: need 3 ranks" in lines, Reach.OUT_OF_REACH


def test_the_command_to_repeat_a_run_contains_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SCALEPROOF_THRESHOLDS", "my rules.toml")
    typed = again(["pytest", "suites"])
    assert "SCALEPROOF_THRESHOLDS='my rules.toml' " in typed and typed.endswith(" pytest suites")


def test_bounds_of_suites_apply_without_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_b.py").write_text(
        "from harness import scaling\n\n\n"
        '@scaling("ddp/mlp-nano", efficiency=0.999)\n'
        "def test_b(verdict):\n    ...\n"
    )
    (rule,) = bounds_of(str(tmp_path), SITE, Catalogue())
    assert rule.at_least == 0.999 and rule.name.endswith("test_b.py::test_b efficiency")
    (plan,) = plans_of(str(tmp_path), SITE, Catalogue(), {})
    assert any(rule.family_matches(arm.case) for arm in plan.arms)
    assert bounds_of("ddp/mlp-nano", SITE, Catalogue()) == ()


def moved(run: RunRecord, by: float) -> RunRecord:
    """Return a copy under another name with every mean step changed by the relative amount ``by``."""

    def touched(launch: LaunchRecord) -> LaunchRecord:
        if launch.steps is None:
            return launch
        steps = dataclasses.replace(launch.steps, mean_s=launch.steps.mean_s * (1 + by))
        ranks = tuple(dataclasses.replace(r, samples_sha256=f"{r.rank:064}") for r in launch.ranks)
        return dataclasses.replace(launch, steps=steps, ranks=ranks)

    return dataclasses.replace(run, run="another", launches=tuple(map(touched, run.launches)))


def test_a_copy_with_slightly_changed_times_is_recognized(sample_run: RunRecord) -> None:
    assert "one by one" in twice(moved(sample_run, 1e-7), sample_run)
    assert not twice(moved(sample_run, 1e-2), sample_run)


CONTRACT = """
[contract]
title = "t"
nodes = 1
{units}
[[clause]]
name = "good"
says = "s"
asked_by = "me"
case = "ddp/decoder-nano/weak"
metric = "throughput"
unit = "samples/s"
{bound}
"""
UNIT = '[[unit]]\nof = "rack"\nname = "{}"\nnodes = ["*"]\n'


def test_racks_that_share_a_node_are_refused(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "units.toml"
    units = UNIT.format("r1") + UNIT.format("r2")
    path.write_text(CONTRACT.format(units=units, bound='at_least = 1.0\nper = "rack"'))
    assert main(["accept", "contract", "check", str(path), str(sample)]) == 4
    assert "is in rack r1 and in rack r2" in capsys.readouterr().err


def test_a_run_cannot_be_its_own_accepted_record(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "accepted.toml"
    path.write_text(CONTRACT.format(units="", bound="of_accepted = 0.5"))
    before = shutil.copytree(sample, tmp_path / "then")
    status = main(
        ["accept", "contract", "check", str(path), str(sample), "--accepted", str(before)]
    )
    assert status == 11
    assert "has the samples of" in " ".join(capsys.readouterr().out.split())


def test_a_run_slowed_by_other_processes_is_not_a_regression(sample_run: RunRecord) -> None:
    """One of two equal runs records background load and is slower by half."""

    def slowed(launch: LaunchRecord) -> LaunchRecord:
        if launch.purpose is not Purpose.TIMED or launch.steps is None:
            return launch
        ranks = tuple(
            dataclasses.replace(
                r, window_s=1.5 * r.window_s, waited_s=0.5 * r.window_s, throttled_s=0.0
            )
            for r in launch.ranks
        )
        steps = dataclasses.replace(launch.steps, mean_s=1.5 * launch.steps.mean_s)
        return dataclasses.replace(launch, ranks=ranks, steps=steps, foreign_load=0.5)

    busy = dataclasses.replace(sample_run, launches=tuple(map(slowed, sample_run.launches)))
    comparison = side_by_side(sample_run, busy, "throughput", hardware=False)
    assert all(row.ratio is None or row.ratio < 0.7 for row in comparison.rows)
    assert {row.reading for row in comparison.rows} <= {Reading.UNDECIDED, Reading.SAME}
    assert any("other processes can have taken" in text for text in comparison.differs)
    _, low, high = mean_ratio(comparison.rows)
    assert low is not None and high is not None and low < 1 < high


def test_an_unknown_load_is_reported(sample_run: RunRecord) -> None:
    def blind(launch: LaunchRecord) -> LaunchRecord:
        ranks = tuple(dataclasses.replace(rank, throttled_s=None) for rank in launch.ranks)
        return dataclasses.replace(launch, ranks=ranks, foreign_load=None)

    unknown = dataclasses.replace(sample_run, launches=tuple(map(blind, sample_run.launches)))
    differs = side_by_side(sample_run, unknown, "throughput", hardware=False).differs
    assert "load: the background load of B's launches is unknown" in differs


@pytest.mark.parametrize(
    ("table", "status", "says"),
    [
        ('[[row]]\nranks=1\ntime="480 s"\n[[row]]\nranks=8\ntime="60 min"\nspeedup="8"', 1, "off"),
        ('[[row]]\nranks=1\ntime="480"\n[[row]]\nranks=8\ntime="60 s"', 4, "has a unit"),
        ("[[row]]\nranks=1\ntime=480\n[[rows]]\nranks=8\ntime=300\nspeedup=16", 4, "[[rows]]"),
        ("[[row]]\nranks=1\ntime=480\nefficeincy=0.5", 4, "did you mean 'efficiency'?"),
    ],
)
def test_an_audit_ignores_no_figure(
    table: str, status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.toml"
    path.write_text(table)
    assert main(["verify", "table", str(path)]) == status
    printed = capsys.readouterr()
    assert says in printed.out + printed.err


def test_an_edit_of_the_copy_is_still_found(copy: Path) -> None:
    """This shows that changes of the copies above can be detected."""
    change(copy, lambda doc: doc["launches"].pop())
    assert verify(load(copy), copy).differences
