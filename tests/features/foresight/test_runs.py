"""Scaling sweeps of runs become tables that predict other world sizes, or they are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cases import Catalogue
from harness.features.foresight.outlook import outlooks
from harness.features.foresight.own import runs
from harness.features.foresight.published.table import PublishedTable, Refused
from harness.features.foresight.shapes import KeptStates
from harness.interface.cli.main import main
from harness.record import RunRecord, Status
from harness.record.store import load


def tables(found: list[RunRecord], known: Catalogue) -> list[PublishedTable | Refused]:
    return [runs.table(name, of, known) for name, of in runs.ladders(found, known).items()]


@pytest.fixture(scope="module")
def run(sample: Path) -> RunRecord:
    return load(sample)


def test_a_sweep_becomes_a_table_of_its_world_sizes(run: RunRecord) -> None:
    (table,) = tables([run], Catalogue())
    assert isinstance(table, PublishedTable) and all(p.calibrates for p in table.points)
    shapes = {p.shape.ranks: p.shape for p in table.points}
    assert set(shapes) == {1, 2}
    assert {s.micro_batch for s in shapes.values()} == {shapes[1].samples}, (
        "in weak mode the batch per rank is constant"
    )
    assert shapes[2].kept is KeptStates.WHOLE and (shapes[2].model.params or 0) > 1e5
    steps = {p.shape.ranks: p.step_s or 0.0 for p in table.points}
    assert steps[2] > steps[1] > 0


def test_a_larger_world_is_predicted_with_an_interval(run: RunRecord) -> None:
    (table,) = tables([run, run], Catalogue())
    assert isinstance(table, PublishedTable)
    (outlook,) = outlooks(table, 64, 0.9)
    seen = outlook.predicted
    assert seen.shape.ranks == 64 and 0 < seen.low <= seen.efficiency <= seen.high
    assert seen.low < 1 and sum(seen.lost.values()) == pytest.approx(1 - seen.efficiency, abs=1e-6)
    assert outlook.advice.shape.ranks > 2


def test_different_machines_and_single_world_sizes_are_refused(run: RunRecord) -> None:
    other = replace(run, software={**run.software, "torch": "2.11.0"})
    (refused,) = tables([run, other], Catalogue())
    assert isinstance(refused, Refused) and "different machines or software" in refused.why
    for fact, here, there in (
        ("clock: gpu 0", "1980 MHz, 700 W", "1980 MHz, 500 W"),
        ("version: container image", "sha256:1", "sha256:2"),
    ):
        ours, theirs = (replace(run, facts={"a": {fact: value}}) for value in (here, there))
        (refused,) = tables([ours, theirs], Catalogue())
        assert isinstance(refused, Refused) and fact in refused.why and there in refused.why
    named = [replace(run, facts={h: {"hardware: host": h}}) for h in "ab"]
    assert isinstance(tables(named, Catalogue())[0], PublishedTable), (
        "a host's name changes no speed"
    )
    single = tuple(x for x in run.launches if len(x.ranks) == 1)
    (refused,) = tables([replace(run, launches=single)], Catalogue())
    assert isinstance(refused, Refused) and "1 rank only" in refused.why


def test_an_incorrect_training_run_is_not_used_for_predictions(run: RunRecord) -> None:
    """An incorrect training run may be fast."""
    subject = max((a.case for p in run.plans for a in p.arms), key=lambda c: c.world_size)
    judged = next(v for v in run.verdicts if v.case_hash == subject.hash)
    error = replace(judged, status=Status.ERROR, detail="its losses are not the reference's")
    (refused,) = tables([replace(run, verdicts=(*run.verdicts, error))], Catalogue())
    assert isinstance(refused, Refused) and "its losses are not the reference's" in refused.why


def test_predict_accepts_runs(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(sample), "--to", "4x8", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["outlooks"]
    assert document["predicted"]["shape"]["ranks"] == 32


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no runs and no table were given"),
        (["RUN"], "--to is missing"),
        (["RUN", "--to", "many"], "--to many"),
        (["RUN", "--to", "8", "--table", "x.json"], "runs and a table"),
    ],
)
def test_invalid_options_are_one_clear_error(
    words: list[str], says: str, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(sample) if word == "RUN" else word for word in words]
    assert main(["predict", *asked]) == 4
    assert says in capsys.readouterr().err
