"""A network sweep with real ranks times and checks every collective, without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.interface.cli.main import main
from harness.record.store import load


def test_a_sweep_times_every_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["network", "--cpus", "2", "--sweeps", "1"])
    (folder,) = tmp_path.glob("results/runs/*/*")
    run = load(folder)
    assert {row.operation for row in run.fabric} >= {"all_reduce", "all_gather", "send_recv"}
    assert all(row.right and row.time_s > 0 for row in run.fabric)
    assert not [note for note in run.notes if "broke" in note], capsys.readouterr().out
