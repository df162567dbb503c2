"""docs/design.md names what exists: its types are classes, its places are files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()
PACKAGE = ROOT / "harness"
#: Names that are protocols of modules instead of classes.
CONCEPTS = {"Task"}
TYPES = re.search(r"\| type \| meaning \| file \|\n(.*?)\n\n", PAGE, re.S)


def names() -> set[str]:
    """Classes, and other names that a module gives something."""
    out = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                out.add(node.name)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                out.add(node.targets[0].id)
    return out


def test_every_type_is_a_name_of_the_code_and_they_are_few() -> None:
    assert TYPES is not None
    rows = [line.split(" | ")[0].removeprefix("| ") for line in TYPES[1].splitlines()[1:]]
    types = {name.strip("` ") for row in rows for name in row.split(",")}
    assert types - names() <= CONCEPTS
    assert len(rows) <= 15


def test_the_page_is_one_page() -> None:
    assert len(PAGE.splitlines()) <= 110


def test_every_place_is_there() -> None:
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
