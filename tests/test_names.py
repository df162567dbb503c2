"""Facts instead of names: only its own file knows what a strategy, model, engine is called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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
    ("cases/case.py", "single"): "PLAIN, the strategy of every plain baseline",
    ("cases/case.py", "paced"): "the label of a stand-in",
    ("cases/case.py", "emulated"): "the label of a stand-in",
    ("cases/settings.py", "local"): "the engine where none is named",
    ("cases/site.py", "local"): "the engine where none is named",
    ("interface/options.py", "local"): "the engine where none is named",
    ("interface/offered.py", "local"): "the engine where none is named",
    ("cases/case.py", "bf16"): "a precision",
    ("cases/case.py", "fp16"): "a precision",
    ("cases/case.py", "fp8"): "a precision",
    ("cases/case.py", "fsdp"): "a dimension of a mesh",
    ("cases/heads.py", "compressed"): "an oracle",
    ("training/rank/tasks/gate.py", "compressed"): "an oracle",
    (
        "interface/cli/commands/jobs.py",
        "slurm",
    ): "jobs of older versions do not say their engine",
    ("cases/typed.py", "slurm"): "the engine that does what srun would",
    ("interface/report/screen.py", "threshold"): "the column of bounds",
    ("cases/typed.py", "torchrun"): "the launcher as people type it",
    ("cases/typed.py", "deepspeed"): "the launcher as people type it",
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


def test_no_file_but_its_own_knows_a_name() -> None:
    known = [
        (inside, line, word)
        for path in sorted(PACKAGE.rglob("*.py"))
        for inside in [str(path.relative_to(PACKAGE))]
        for word, line in words(path)
        if word in NAMES and NAMES[word] != path and (inside, word) not in ALLOWED
    ]
    text = "".join(
        f"\n{inside}:{line}: {word!r}: state a fact in the head of {NAMES[word].name} instead"
        for inside, line, word in known
    )
    assert not known, text


def test_every_exception_is_still_one() -> None:
    """An exception whose reason is gone is taken off the list."""
    for inside, word in ALLOWED:
        assert word in {w for w, _ in words(PACKAGE / inside)}, f"{inside} does not say {word!r}"
