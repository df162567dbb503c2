"""``scaleproof predict`` is readable in 80 columns, and its errors end with a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.interface.cli.main import main

PUBLISHED = str(Path(__file__).parents[3] / "results/published/scaling.json")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_first_lines_summarize_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--table", PUBLISHED]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" 76 sizes predicted: ") and "80 % intervals contain" in lines[1]
    assert max(map(len, lines[:-1])) <= 80, "only the last line, a command, may be longer"
    assert any(line.startswith(" not counted") for line in lines)
    assert lines[-1].endswith("--sizes"), "the last line must be the next command"


def test_one_table_is_printed_with_every_world_size(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "megascale_tab2_megatron_lm", "--to", "2048", "--hold", "0.8"]
    assert main(["predict", "--table", PUBLISHED, *words]) == 0
    out = capsys.readouterr().out
    assert " 12288 " in out and "limited by" in out and "to hold 0.80" in out
    assert "to see a knee" in out
    assert "measure next" in out and "laws in N" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_document_has_every_size_and_score(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--table", PUBLISHED, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["scores"]["whole"]["num"] == 76
    total = sum(len(t["predicted"]) for t in document["tables"])
    assert total == 77, "one prediction does not count for the score"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--table", "nowhere.json"], "cannot be read"),
        (["--table", PUBLISHED, "--only", "zero_buble_tab4_5"], "did you mean 'zero_bubble"),
        (["--table", PUBLISHED, "--only", "playbook_tp"], "no table can be used"),
        (["--table", PUBLISHED, "--to", "0"], "--to 0"),
        (["--table", PUBLISHED, "--hold", "-1"], "--hold -1"),
        (
            ["--table", PUBLISHED, "--only", "megascale_tab2_megascale", "--to", "100"],
            "not a multiple",
        ),
    ],
)
def test_errors_end_with_a_command(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *words]) == 4
    error = capsys.readouterr().err
    assert what in error and "  try       " in error


def test_a_table_with_nothing_to_predict_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"id": "t", "calibrate_on": [8], "points": [{"N": 8, "mbs": 1, "step_s": 1}]}
    (tmp_path / "t.json").write_text(json.dumps(table))
    assert main(["predict", "--table", str(tmp_path / "t.json")]) == 5
