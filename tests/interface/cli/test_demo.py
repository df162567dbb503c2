"""``run demo`` is a run that a user could have typed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import Exit
from harness.host import nvml
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.commands import run
from harness.interface.cli.main import main


@pytest.mark.parametrize(
    ("gpus", "cpus", "ranks"),
    [
        (0, 1, ["--cpus", "2"]),
        (1, 64, ["--cpus", "4"]),
        (2, 8, ["--gpus", "2"]),
        (8, 8, ["--gpus", "4"]),
    ],
)
def test_the_demo_uses_the_devices_of_this_machine(
    gpus: int, cpus: int, ranks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Asked] = []

    def act(typed: Asked) -> Answer:
        asked.append(typed)
        return Answer(document=None, lines=[])

    monkeypatch.setattr(nvml, "gpus", lambda: tuple(SimpleNamespace() for _ in range(gpus)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    monkeypatch.setattr(run, "act", act)
    assert main(["run", "demo"]) == 0
    (typed,) = asked
    assert typed.words[:2] == ["run", "ddp/decoder-nano/weak"] and typed.words[2:4] == ranks
    assert typed.options.target == "ddp/decoder-nano/weak" and typed.options.set == []


@pytest.mark.full
def test_the_demo_prints_figures_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "demo"]) == Exit.PASSED
    (record,) = tmp_path.glob("results/runs/*/*/record.json")
    assert json.loads(record.read_text())["complete"]
    assert (record.parent / "report.html").is_file()
    assert "scaleproof run ddp/decoder-nano/weak" in " ".join(capsys.readouterr().out.split())
