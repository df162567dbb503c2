"""The data that other programs get of a run: every figure with its interval, and only of a verified
run.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from harness.analysis.judging.points import points
from harness.interface.cli.main import main
from harness.record.store import load


def test_bencher_gets_values_with_their_intervals(sample: Path, tmp_path: Path) -> None:
    """The format is that of https://bencher.dev/docs/reference/bencher-metric-format: {name:
    {measure: {value, ...}}}
    """
    to = tmp_path / "b.json"
    assert main(["report", "publish", str(sample), "--in", "bencher", "--to", str(to)]) == 0
    document = json.loads(to.read_text())
    run = load(sample)
    for plan in run.plans:
        for p in points(run, plan, "plain"):
            metric = document[p.case]["efficiency-v-plain"]
            assert metric["value"] == pytest.approx(p.efficiency)
            if p.efficiency_low is not None:
                assert metric["lower_value"] < metric["value"] < metric["upper_value"]
    assert all(
        set(m) <= {"value", "lower_value", "upper_value"}
        for c in document.values()
        for m in c.values()
    )


def test_github_action_benchmark_gets_figures_for_which_larger_is_better(
    sample: Path, tmp_path: Path
) -> None:
    to = tmp_path / "b.json"
    assert (
        main(["report", "publish", str(sample), "--in", "action_benchmark", "--to", str(to)]) == 0
    )
    rows = json.loads(to.read_text())
    assert rows and all(set(r) == {"name", "unit", "value", "range", "extra"} for r in rows)
    assert all(isinstance(r["value"], float) and r["unit"] != "s" for r in rows)
    assert any(" to " in r["range"] for r in rows)


def test_a_run_that_does_not_verify_is_not_published(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sample, tmp_path / "run")
    (tmp_path / "run/chain.jsonl").unlink()
    to = tmp_path / "b.json"
    assert (
        main(["report", "publish", str(tmp_path / "run"), "--in", "bencher", "--to", str(to)]) == 4
    )
    assert "NOT VERIFIED" in capsys.readouterr().err and not to.exists()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is here")
def test_a_missing_package_is_reported_with_its_install_command(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "publish", str(sample), "--in", "wandb"]) == 4
    assert "pip install 'scaleproof[wandb]'" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_mlflow_stores_the_run_its_figures_and_its_record(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test reads the run back with MLflow's client."""
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    shutil.copytree(sample, tmp_path / "run")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "publish", str(tmp_path / "run"), "--in", "mlflow", "--to", store]) == 0
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("scaleproof")
    (theirs,) = client.search_runs([experiment.experiment_id])
    ours = load(sample)
    assert theirs.info.run_name == ours.run
    for plan in ours.plans:
        for p in points(ours, plan, "plain"):
            name = f"{p.case}/efficiency v plain".replace("@", "-")
            assert theirs.data.metrics[name] == pytest.approx(p.efficiency)
    files = {f.path for f in client.list_artifacts(theirs.info.run_id)}
    assert {"record.json", "verdicts.json"} <= files


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_wandb_stores_a_run_offline(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In offline mode, the data that ``wandb sync`` would send is below ./wandb."""
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["report", "publish", str(sample), "--in", "wandb"]) == 0
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    body = kept.read_bytes()
    assert b"efficiency v plain" in body and b"headline" in body
