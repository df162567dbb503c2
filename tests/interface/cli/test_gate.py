"""``check nodes`` reports fit, unfit or unknown to a prolog; the heartbeat is tested as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import Exit, SpecError
from harness.features.nodes.commands import check_nodes as gate_verb
from harness.interface.cli.main import main
from harness.interface.report.heartbeat import Heartbeat
from harness.measure.progress import Moment, Progress, Waiting
from harness.record import Purpose

MUTANTS = Path(__file__).parents[2] / "mutants"


def gate(folder: Path, *more: str) -> int:
    return main(["check", "nodes", "--cpus", "2", "--results", str(folder), "--json", *more])


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_an_incorrect_training_run_is_unfit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--path", str(MUTANTS), "--case", "mutant/mlp-nano", "--set", "mutant.bug=sum_for_mean"]
    assert gate(tmp_path, *more) == Exit.FAILED
    gate_answer = told(capsys)
    step = [row for row in gate_answer["checks"] if row["check"] == "step"]
    assert gate_answer["fit"] == "UNFIT" and step[0]["level"] == "BAD"
    assert "step1_gradient" in step[0]["told"]


@pytest.mark.full
def test_a_correct_training_run_and_its_collectives_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine the load is reported; the training run and the network are still correct."""
    status = gate(tmp_path, "--case", "ddp/mlp-nano")
    gate_answer = told(capsys)
    by_check = {row["check"]: row for row in gate_answer["checks"]}
    assert by_check["step"]["level"] == "ok"
    if by_check["nodes"]["level"] == "ok":
        assert status == Exit.PASSED and "collectives correct" in by_check["fabric"]["told"]
    else:
        assert status == Exit.FAILED and "load" in by_check["nodes"]["told"]


@pytest.mark.full
def test_a_network_without_a_timed_collective_is_unfit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injected fault is a sweep that returns nothing."""
    # The load of this host must not change the result.
    monkeypatch.setattr(gate_verb, "_nodes", lambda _: ([], ""))
    monkeypatch.setattr(gate_verb.Sweeper, "sweep", lambda *_: None)
    assert gate(tmp_path, "--case", "ddp/mlp-nano") == Exit.FAILED
    assert "no collective was timed" in capsys.readouterr().out


@pytest.mark.parametrize("within", ["soon", "0"])
def test_an_invalid_time_limit_is_refused(
    within: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(tmp_path, "--within", within) == Exit.USAGE
    assert f"--within {within}" in "".join(capsys.readouterr())


def test_a_check_that_takes_too_long_is_stopped_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(tmp_path, "--within", "0.5s") == Exit.INCONCLUSIVE
    gate_answer = told(capsys)
    assert gate_answer["fit"] == "UNKNOWN" and "0.5 s" in gate_answer["late"]


def moment(**more: Any) -> Moment:
    fields = dict(
        plan="p", number=2, num_plans=7, arm='ddp/"x"', purpose=Purpose.TIMED, launch=1,
        num_launches=9, step=3, num_steps=32, elapsed_s=12.5, left_s=80.0, last="",
    )  # fmt: skip
    return Moment(**{**fields, **more})


def test_a_heartbeat_is_valid_openmetrics(tmp_path: Path) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    path = tmp_path / "run.prom"
    heart = Heartbeat(Progress(), path)
    heart.note("something")
    heart.show(moment())
    families = {f.name: f for f in text_string_to_metric_families(path.read_text())}
    assert families["scaleproof_left_seconds"].samples[0].value == 80.0
    assert families["scaleproof_notes"].samples[0].value == 1.0
    assert families["scaleproof_run"].samples[0].labels["case"] == 'ddp/"x"'
    before = path.read_text()
    heart.show(moment(step=4))
    assert path.read_text() == before, (
        "the file must not be written more often than every few seconds"
    )


def test_a_heartbeat_reports_waiting_for_agents(tmp_path: Path) -> None:
    heart = Heartbeat(Progress(), tmp_path / "run.prom")
    heart.show(Waiting(here=3, wanted=64, says="job 7 pending", waited_s=4.0))
    assert "waiting for 64 agents" in (tmp_path / "run.prom").read_text()


def test_an_unwritable_heartbeat_is_refused_at_start_and_tolerated_later(
    tmp_path: Path,
) -> None:
    with pytest.raises(SpecError, match="--heartbeat"):
        Heartbeat(Progress(), tmp_path / "none" / "run.prom")
    messages: list[str] = []

    class Teller(Progress):
        def note(self, text: str) -> None:
            messages.append(text)

    heart = Heartbeat(Teller(), tmp_path / "run.prom")
    (tmp_path / "run.prom").mkdir()  # A folder blocks the path of the file.
    heart.show(moment())
    heart.show(moment(step=4))
    assert len(messages) == 1 and "run.prom cannot be written" in messages[0]
