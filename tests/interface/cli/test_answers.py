"""Every ``--json`` document follows the schema that is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.host import admission
from harness.interface.cli.main import commands, main, resolve
from harness.interface.schema import NAME, answers_schema, by_folder

ROOT = Path(__file__).parents[3]
ONE, OTHER = "tests/golden/samples/ddp-nano", "tests/golden/samples/ddp-nano-again"


def test_the_shipped_schemas_are_those_of_the_code() -> None:
    for folder, documents in by_folder().items():
        shipped, made = json.loads((folder / NAME).read_text()), answers_schema(documents)
        assert shipped == json.loads(json.dumps(made)), "python -m harness.interface.schema"


def test_every_command_has_a_schema() -> None:
    told = {verb for documents in by_folder().values() for verb in documents}
    assert told == {*commands(), "error"} - {"jobs join"}, (
        "jobs join becomes an agent and prints no document"
    )


def check(verb: str, document: Any) -> None:
    """Raise ValidationError if a document does not follow the schema of its command."""
    folder = next(folder for folder, documents in by_folder().items() if verb in documents)
    schema = json.loads((folder / NAME).read_text())
    jsonschema.validate(document, {"$defs": schema["$defs"], **schema["properties"][verb]})


@pytest.mark.parametrize(
    "words",
    [
        ["check"],
        ["run", "list"],
        ["run", "list", "strategies"],
        ["report", ONE],
        ["report", ONE, "--summary"],
        ["report", ONE, "--proposal"],
        ["verify", ONE],
        ["verify", ONE, "--thresholds", "suites/thresholds.toml"],
        ["compare", ONE, OTHER],
        ["compare", "machines", ONE, OTHER, "--price", "A=3.5"],
        ["check", "thresholds", "suites/thresholds.toml"],
        ["verify", "table", "examples/audit/claims.md"],
        pytest.param(
            ["predict", "--table", "results/published/scaling.json", "--to", "1024"],
            marks=pytest.mark.full,
            id="predict-table",
        ),
        ["new", "completion", "bash"],
        ["accept", "pack", ONE, "--to", "{}/a.tar.gz"],
        ["accept", "unpack", "{}/a.tar.gz", "--to", "{}/results"],
        ["accept", "report", ONE, OTHER, "--to", "{}/acceptance"],
        ["report", "export", ONE, "--to", "{}/a.csv"],
        ["history", "add", ONE, OTHER, "--results", "{}/history"],
        ["history", "--results", "{}/history"],
        ["jobs", "--results", "{}"],
        ["new", "{}/new"],
        ["report", "nowhere"],
        ["run", "ddp/mlp-nano", "--dry-run", "--cpus", "2"],
        ["run", "plan", "ddp/mlp-nano/weak", "--cpus", "2"],
    ],
    ids=lambda words: "-".join(w.rpartition("/")[2] for w in words),
)
def test_printed_documents_follow_the_schema(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(admission, "examine", lambda num_gpus=None: ())
    place = tmp_path_factory.getbasetemp() / "answers"
    status = main([word.format(place) for word in words] + ["--json"])
    printed = json.loads(capsys.readouterr().out)
    check("error" if status == 4 else resolve(words, commands())[0], printed)


def test_a_document_with_a_wrong_field_does_not_follow_the_schema() -> None:
    check("jobs cancel", {"job": "7"})
    for wrong in ({"job": 7}, {}, {"job": "7", "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check("jobs cancel", wrong)
