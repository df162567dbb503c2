"""No module refers to a strategy, model or engine by name, except the file that defines it."""

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
    if entry.shipped and entry.name != "none"  # too common a word
}
#: (file, word that is also a name) -> its meaning there.
ALLOWED = {
    ("cases/case.py", "single"): "PLAIN, the strategy of every plain baseline",
    ("cases/case.py", "paced"): "the label of simulated compute",
    ("cases/case.py", "emulated"): "the label of an emulated network",
    ("cases/settings.py", "local"): "the default engine",
    ("cases/site.py", "local"): "the default engine",
    ("interface/options.py", "local"): "the default engine",
    ("interface/offered.py", "local"): "the default engine",
    ("cases/case.py", "bf16"): "a precision",
    ("cases/case.py", "fp16"): "a precision",
    ("cases/case.py", "fp8"): "a precision",
    ("cases/case.py", "fsdp"): "a dimension of a mesh",
    ("cases/heads.py", "compressed"): "an oracle",
    (
        "interface/cli/commands/jobs.py",
        "slurm",
    ): "jobs of older versions do not record their engine",
    ("cases/typed.py", "slurm"): "the engine that replaces srun",
    ("interface/report/screen.py", "threshold"): "the column of bounds",
    ("cases/typed.py", "torchrun"): "the launcher as users type it",
    ("cases/typed.py", "deepspeed"): "the launcher as users type it",
    ("record/upgrade.py", "emulated"): "records of schema 4 and older lack the rate of a link",
}


def words(path: Path) -> Iterator[tuple[str, int]]:
    """Yield a module's string literals with their lines; of a knob, the part before its dot.

    Excluded are a declaration's dimensions, precisions and ``beside``.
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


def test_only_its_own_file_uses_a_name() -> None:
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


def test_every_exception_is_still_needed() -> None:
    """An exception without a use must be removed from the list."""
    for inside, word in ALLOWED:
        assert word in {w for w, _ in words(PACKAGE / inside)}, f"{inside} does not say {word!r}"
