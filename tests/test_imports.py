"""Code outside of the package imports only names that the package has.

Scripts, benchmarks and acceptance programs run seldom, some of them first on a user's GPU: a moved
name must be found earlier.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("scripts", "benchmarks", "suites", "examples", "tests")


def programs() -> list[Path]:
    """Return all Python files of these folders."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in files if "__pycache__" not in path.parts]


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import from the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness"):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.startswith("harness"))


def there(module: str, name: str) -> bool:
    try:
        if not name or hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("harness")  # an extra that is not installed
    return True


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_imported_from_the_package_exist(folder: str) -> None:
    wanted = {
        (module, name): path.relative_to(ROOT)
        for path in programs()
        if path.is_relative_to(ROOT / folder)
        for module, name in imports(path)
    }
    missing = [f"{path}: {m}.{n}" for (m, n), path in wanted.items() if not there(m, n)]
    assert missing == []
