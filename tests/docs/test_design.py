"""docs/design.md is up to date: its nouns are classes, and its places are files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()
PACKAGE = ROOT / "harness"
#: Nouns of the design without a class: modules, fields, or several classes together.
CONCEPTS = {"Feed", "Setup", "Shepherd", "Slot", "Task", "Twin"}
NOUNS = re.search(r"\| noun \| is \| where \|\n(.*?)\n\n", PAGE, re.S)


def names() -> set[str]:
    """Return the names of classes and of assignments in the package."""
    out = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                out.add(node.name)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                out.add(node.targets[0].id)
    return out


def test_every_noun_is_a_name_in_the_code() -> None:
    assert NOUNS is not None
    rows = [line.split(" | ")[0].removeprefix("| ") for line in NOUNS[1].splitlines()[1:]]
    nouns = {noun.strip() for row in rows for noun in row.split(",")}
    assert len(nouns) > 80 and nouns - names() == CONCEPTS


def test_every_place_exists() -> None:
    for place in re.findall(r"`((?:[a-z]+/)+[a-z_]*(?:\.py|\.toml)?)`", PAGE):
        where = [PACKAGE / place, ROOT / place, PACKAGE / "features" / "foresight" / place]
        assert any(p.exists() for p in where), place


def test_every_type_is_in_the_file_that_the_page_names() -> None:
    assert TYPES is not None
    for row in TYPES[1].splitlines()[1:]:
        types, _, files = (cell.strip() for cell in row.strip("| ").split(" | "))
        text = "".join((PACKAGE / file).read_text() for file in re.findall(r"`([^`]+)`", files))
        for name in re.findall(r"`(\w+)`", types):
            assert re.search(rf"^(class {name}\b|{name}\b.* = )", text, re.M), (name, files)
