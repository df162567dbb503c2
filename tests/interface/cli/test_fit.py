"""``run fit``: its output, recovery from out-of-memory in fresh worlds, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.base.errors import Exit
from harness.interface.cli.main import main

GREEDY = '''"""Lacks memory above 20 samples."""

from harness.training.models import mlp

SIZES = {"small": dict(d=64, layers=2, classes=16, batch=4)}
build, batch, loss, flops = mlp.build, mlp.batch, mlp.loss, mlp.flops
plain = mlp.batch


def batch(ids, size):
    if len(ids) > 20 and ids.device.type == "cpu" and not ids.is_meta:
        raise MemoryError("no room for these samples")
    return plain(ids, size)
'''


@pytest.mark.full
def test_fit_recovers_from_out_of_memory_and_finds_the_micro_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    words = [
        "run",
        "fit",
        "ddp/greedy-small",
        "--cpus",
        "2",
        "--path",
        str(tmp_path),
        "--memory",
        "4",
    ]
    assert main([*words, "--json"]) == Exit.PASSED
    document = json.loads(capsys.readouterr().out)
    assert document["micro_batch"] in (18, 19, 20)
    assert any("ran out of memory" in t["why"] for t in document["tried"])


@pytest.mark.full
def test_a_model_that_fits_nowhere_fails(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "fit", "single/mlp-nano", "--cpus", "1", "--memory", "0.001"]
    assert main(words) == Exit.FAILED
    screen = capsys.readouterr().out
    assert "NONE" in screen and "a rank does not fit" in screen


@pytest.mark.full
def test_the_limit_of_option_most_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "fit", "pipeline/mlp-nano", "--cpus", "2", "--most", "16", "--memory", "4"]
    assert main(words) == Exit.PASSED
    screen = capsys.readouterr().out
    assert "--most 16, not memory" in screen and "--set micro_batch=16" in screen


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["run", "fit", "ddp/mlp-nano/strong", "--cpus", "2", "--set", "global_batch=8"],
            "weak scaling",
        ),
        (["run", "fit", "ddp/mlp-nanoo", "--cpus", "2"], "did you mean"),
    ],
)
def test_mistakes_are_reported(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == Exit.USAGE
    assert says in capsys.readouterr().err
