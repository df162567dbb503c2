"""Facts instead of names: only its own file knows what a strategy, model, engine is called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.programs import PACKAGE
from harness.cases.catalogue import Catalogue

NAMES = {
    entry.name: entry.path
    for kind in ("strategies", "models", "compressors", "engines")
    for entry in Catalogue().entries[kind].values()
    if entry.shipped and entry.name != "none"  # too usual a word
}
#: A word that is a name as well, and what it is there.
ALLOWED = {
    ("spec/case.py", "single"): "PLAIN, the strategy of every plain baseline",
    ("spec/case.py", "paced"): "the label of a stand-in",
    ("spec/case.py", "emulated"): "the label of a stand-in",
    ("spec/settings.py", "local"): "the engine where none is named",
    ("spec/site.py", "local"): "the engine where none is named",
    ("interface/options.py", "local"): "the engine where none is named",
    ("interface/offered.py", "local"): "the engine where none is named",
    ("spec/case.py", "bf16"): "a precision",
    ("spec/case.py", "fp16"): "a precision",
    ("spec/case.py", "fp8"): "a precision",
    ("spec/mesh.py", "fsdp"): "a dimension of a mesh",
    ("spec/heads.py", "compressed"): "an oracle",
    ("training/rank/tasks/gate.py", "compressed"): "an oracle",
    (
        "interface/cli/verbs/measure/detached.py",
        "slurm",
    ): "jobs of older versions do not say their engine",
    ("record/upgrade.py", "emulated"): "records of schema 4 and older say no rate of a link",
}


def words(path: Path) -> Iterator[tuple[str, int]]:
    """String literals of a module: names, and what stands before the dot of a knob.

    But for what a head says of a strategy: dimensions, precisions, and what it is held beside.
    """
    tree = ast.parse(path.read_text())
    stated = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in ("beside", "dims", "precisions")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in stated:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            knob = re.fullmatch(r"(\w+)\.\w*", node.value)
            yield knob[1] if knob else node.value, node.lineno


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_file_but_its_own_knows_a_name(path: Path) -> None:
    inside = str(path.relative_to(PACKAGE))
    found = [
        f"{inside}:{line}: {word!r}"
        for word, line in words(path)
        if word in NAMES and NAMES[word] != path and (inside, word) not in ALLOWED
    ]
    assert not found, f"{found}: state a fact in the head of {word_files(found)} instead"


def word_files(found: list[str]) -> str:
    return ", ".join(sorted({str(NAMES[f.split("'")[1]].name) for f in found}))


def test_every_exception_is_still_one() -> None:
    """An exception whose reason is gone is taken off the list."""
    for inside, word in ALLOWED:
        assert word in {w for w, _ in words(PACKAGE / inside)}, f"{inside} does not say {word!r}"
