"""Exports can be read by the programs that they are made for."""

from __future__ import annotations

import io
import json
import math
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness.analysis.ladder import arm_row
from harness.interface import export, frames
from harness.interface.cli.main import main
from harness.interface.report.tabled import written
from harness.record.store import load

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("table", export.TABLES)
def test_every_table_is_the_same_in_every_format(sample: Path, tmp_path: Path, table: str) -> None:
    frame = export.TABLES[table](sample)
    assert len(frame)
    for form in (".csv", ".jsonl", ".parquet"):
        file = tmp_path / f"x{form}"
        assert main(["report", "export", str(sample), "--table", table, "--to", str(file)]) == 0
        read = {
            ".csv": lambda f: pd.read_csv(f),
            ".jsonl": lambda f: pd.read_json(f, lines=True, dtype=False),
            ".parquet": lambda f: pd.read_parquet(f, engine="pyarrow"),
        }[form](file)
        assert list(read.columns) == list(frame.columns) and len(read) == len(frame)
        for name in frame.select_dtypes("number"):
            assert read[name].astype(float).to_numpy() == pytest.approx(
                frame[name].astype(float).to_numpy(), rel=1e-12, nan_ok=True
            ), (form, name)


def test_openmetrics_equals_the_record(sample: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    assert main(["report", "export", str(sample), "--to", str(file)]) == 0
    families = {f.name: f for f in text_string_to_metric_families(file.read_text())}
    run, loaded = load(sample), families["scaleproof_efficiency_ratio"].samples
    against = {s.labels["case"]: s.value for s in loaded if s.labels["against"] == "plain"}
    judged = {v.case: v.value for v in run.verdicts if v.against == "plain"}
    assert against == pytest.approx(judged)
    assert len(families["scaleproof_verdict"].samples) == len(run.verdicts)


def test_hostile_labels_are_escaped(sample: Path) -> None:
    run = load(sample)
    object.__setattr__(run.plans[0].arms[0].case, "model", 'a"} 1\nevil 2\\')
    vars(run.plans[0].arms[0].case).pop("id", None)
    vars(run.plans[0].arms[0].case).pop("family", None)
    families = list(text_string_to_metric_families(export.openmetrics([run])))
    assert all(f.name.startswith("scaleproof_") for f in families)


def test_text_that_looks_like_a_formula_is_escaped() -> None:
    (_, row) = written([{"a": "=1+2", "b": "-3.5", "c": "@x", "d": -1.5}])
    assert row == "'=1+2,-3.5,'@x,-1.5"


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"])
def test_a_cell_or_a_header_begins_no_row(line_break: str) -> None:
    text = f"a{line_break}=HYPERLINK(1)"
    lines = written([{text: text, "=b": 1}])
    assert [len(line.splitlines()) for line in lines] == [1, 1]
    assert lines == ["a =HYPERLINK(1),'=b", "a =HYPERLINK(1),1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "x.xlsx"], "this file type is not supported"),
        (["--to", "x.prom", "--table", "steps"], "does not apply"),
    ],
)
def test_invalid_export_options_are_reported(
    sample: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "export", str(sample), *words]) == 4
    assert message in capsys.readouterr().err


def test_the_example_runs_unchanged(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["read_runs.py", str(sample)])
    names = runpy.run_path(str(ROOT / "examples/frames/read_runs.py"))
    assert names["parts"].sum(axis=1).gt(0).all()
    screen = capsys.readouterr().out
    assert "between launches" in screen and "efficiency_low" in screen
    lines = pd.read_json(io.StringIO(json.dumps(frames.points(sample).to_dict("records"))))
    assert len(lines) == 3


def test_a_verification_card_is_written_and_read(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rates of a card are those of the run, and ``verify table`` reads it."""
    file = tmp_path / "card.yaml"
    assert main(["report", "export", str(sample), "--to", str(file)]) == 0
    sweeps = yaml.safe_load(file.read_text())["items"]["pretrain_weak_scaling"]
    (sweep,) = sweeps.values()
    assert [point["num_gpus"] for point in sweep["points"]] == [1, 2]
    assert all(math.isfinite(value) for p in sweep["points"] for value in p["metrics"].values())
    rates = [p["metrics"]["last_10_steps_tokens_per_second_per_gpu_avg"] for p in sweep["points"]]
    run = load(sample)
    (plan,) = run.plans
    rows = [arm_row(run, plan, arm) for arm in plan.arms if arm.case.strategy == "ddp"]
    for rate, row in zip(rates, sorted(rows, key=lambda row: row.case.world_size), strict=True):
        assert row.tokens_per_s is not None
        assert rate == pytest.approx(row.tokens_per_s / row.case.world_size, rel=1e-6)
    assert main(["verify", "table", str(file)]) in (0, 5)
    assert "2 ranks" in capsys.readouterr().out
