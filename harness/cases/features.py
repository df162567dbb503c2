"""Features: what the folders of ``features/`` add to the core, found by the heads of their files.

Nobody in the core names a feature: who deletes a folder has the rest as it was. A file states what
it has in its head, as a literal:

    HELP       verbs of the command line (``interface/cli/main.py``)
    SECTION    a part of every report (``interface/report/sections.py``)
    SERIES     ``series(run)``: what is judged beside plans (``analysis/judging/series.py``)
    AUDIT      ``differences(run)``: where a record is not as it was derived (``analysis/audit.py``)
    WATCH      ``watch(progress, address)``: shows a run to another program while it goes on
    COURSES    ``Recoverer(session)``: measures an interrupted training (``interface/plugin``)
"""

import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from harness.base.programs import PACKAGE
from harness.cases.heads import read_head

FEATURES = PACKAGE / "features"


@functools.cache
def files(mark: str) -> Sequence[Path]:
    """The files of all features whose head has this mark."""
    named = (
        path for path in sorted(FEATURES.rglob("*.py")) if mark in path.read_text(encoding="utf-8")
    )
    return [path for path in named if mark in read_head(path)[1]]


@functools.cache
def modules(mark: str) -> Sequence[ModuleType]:
    """The files of features whose head has this mark, imported."""
    return [importlib.import_module(name_of(path)) for path in files(mark)]


def name_of(path: Path) -> str:
    """The name under which a file of the package is imported."""
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
