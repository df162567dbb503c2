"""The tests that docs/trust.md names for its attacks exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "trust.md").read_text()
#: A row: an attack, the check that catches it, its tests.
ROW = re.compile(
    r"^\| (?P<attack>.+?) (?<!\\)\| (?P<caught>.+?) (?<!\\)\| (?P<tests>`.+`) \|$", re.M
)


def functions(file: Path) -> set[str]:
    return {
        node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def rows() -> list[re.Match[str]]:
    section = PAGE.partition("## Known attacks and their tests\n")[2].partition("\n## ")[0]
    return list(ROW.finditer(section))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["attack"][:40])
def test_the_tests_of_an_attack_exist(row: re.Match[str]) -> None:
    for name in re.findall(r"`([^`]+)`", row["tests"]):
        file, _, function = name.partition("::")
        assert function in functions(TESTS / file), name


def test_every_line_of_the_tables_is_parsed() -> None:
    section = PAGE.partition("## Known attacks and their tests\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    headings = sum(line.startswith("| attack |") for line in lines)
    assert len(rows()) == len(lines) - 2 * headings >= 35
