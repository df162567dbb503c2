"""The pages for agents: each command runs, and each named field exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import Exit
from harness.interface.cli.main import commands, parsed
from tests.docs.test_readme import COMMANDS

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "docs/SKILL.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| `scaleproof ([^`]+)` \| ([^|]+) \|$", SKILL, re.M)


def values(document: Any, path: list[str]) -> list[Any]:
    """Return all values at a path, for every item of lists on the way."""
    if isinstance(document, list):
        return [v for item in document for v in values(item, path)]
    if not path:
        return [document]
    return values(document[path[0]], path[1:])


def test_every_status_is_explained() -> None:
    statuses = {int(n) for n in re.findall(r"^\| (\d+) \|", SKILL, re.M)}
    assert statuses == set(map(int, Exit))


def test_its_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert links and all((ROOT / link).is_file() for link in links)


PAGES = {name: (ROOT / name).read_text() for name in ("AGENTS.md", "llms.txt", "docs/SKILL.md")}
PAGES |= {
    f"docs/{name}.md": (ROOT / f"docs/{name}.md").read_text() for name in ("index", "compared")
}
#: Inline commands, and their pages.
TYPED = [
    (page, command)
    for page, text in PAGES.items()
    for command in re.findall(r"`((?:scaleproof|pytest|bash|ruff|python) [^`]+)`", text)
]


@pytest.mark.parametrize(("page", "command"), TYPED)
def test_an_inline_command_is_run_by_a_test(page: str, command: str) -> None:
    """Tables, README or CI cover it; a command with a user's file is only parsed."""
    if command in COMMANDS or command.removeprefix("scaleproof ") in dict(ROWS):
        return
    if command.startswith("scaleproof verify table examples/audit/"):
        return  # features/foresight/test_claims.py runs the audits
    words = shlex.split(command)
    if words[0] == "scaleproof" and " ".join(words[1:]) in commands():  # its name alone
        return
    if words[0] == "scaleproof":
        assert any(word.isupper() for word in words), "what can be run as it stands is run"
        assert " ".join(words[1:]).startswith(parsed(words[1:]).command)
        return
    if words[0] == "pytest":
        assert (ROOT / words[1]).is_dir(), "CI runs all of both folders"
        return
    whole = (ROOT / ".ci/run").read_text() + (ROOT / "tox.ini").read_text()
    for part in command.split(" && "):
        usual = part.replace("ruff format .", "ruff format --check .")
        assert usual in whole or usual.replace("mypy", "commands = mypy") in whole, part


#: Commands that the tests of the README cover, too.
LONG = ("check", "run plan", "compare", "predict")


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        pytest.param(
            command, fields, id=command, marks=[pytest.mark.full] * command.startswith(LONG)
        )
        for command, fields in ROWS
    ],
)
def test_a_command_has_the_documented_fields(command: str, fields: str) -> None:
    words = [sys.executable, "-m", "harness", *shlex.split(command), "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    # 10: the machine is too noisy for measurements, according to ``check``.
    answers = (Exit.PASSED, Exit.FAILED, Exit.NOTHING_JUDGED, Exit.INCONCLUSIVE)
    assert done.returncode in answers, done.stderr
    document = json.loads(done.stdout)
    named = re.findall(r"`([^`]+)`", fields)
    assert named
    for field in named:
        values(document, field.split("."))  # KeyError where it is not there
    lists = {field.split(".")[0] for field in named if "." in field}
    assert any(document[name] for name in lists) or not lists, "an example that shows something"
