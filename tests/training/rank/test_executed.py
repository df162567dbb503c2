"""Code that a user's file executes without importing a module is found by Python's audit events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base import files as digests

#: Each test uses a separate process, because an audit hook cannot be removed.
ASK = """
import json, sys
from harness.training.rank import sources
sources.watch(["mine.py"])
sys.path.insert(0, ".")
import mine
texts = {str(path): of_file for path, of_file in sources.texts().items()}
print(json.dumps([texts, {str(path): digest for path, digest in sources.executed_files().items()}]))
"""
FROM_FILE = """
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("nameless", "inner.py")
spec.loader.exec_module(module_from_spec(spec))
"""


def seen(folder: Path, mine: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    (folder / "mine.py").write_text(mine)
    (folder / "inner.py").write_text("x = 5\n")
    words = [sys.executable, "-c", ASK]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    texts, files = json.loads(done.stdout)
    return texts, files


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "text",
    [
        "exec(open('inner.py').read())",
        "exec(compile(open('inner.py').read(), 'another', 'exec'))",
        "exec('exec(open(\"inner.py\").read())')",
        "import ast; exec(compile(ast.parse(open('inner.py').read()), 'tree', 'exec'))",
        "import code; code.InteractiveInterpreter().runcode(compile('x = 5\\n', 'console', 'exec'))",
    ],
)
def test_an_executed_text_has_a_digest(tmp_path: Path, text: str) -> None:
    texts, _ = seen(tmp_path, text)
    assert digests.digest_of_bytes(b"x = 5\n") in texts[str(tmp_path / "mine.py")]


@pytest.mark.parametrize("text", ["import runpy; runpy.run_path('inner.py')", FROM_FILE])
def test_a_file_without_a_module_has_a_digest(tmp_path: Path, text: str) -> None:
    texts, files = seen(tmp_path, text)
    assert files == {str(tmp_path / "inner.py"): digests.digest_of_bytes(b"x = 5\n")}
    assert not texts


def test_a_text_with_the_name_of_another_file_is_a_text(tmp_path: Path) -> None:
    texts, files = seen(tmp_path, "exec(compile('x = 6', 'inner.py', 'exec'))")
    assert list(texts) == [str(tmp_path / "mine.py")]
    assert not files or files == {str(tmp_path / "inner.py"): digests.digest_of_bytes(b"x = 5\n")}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "text",
    [
        "import marshal; exec(marshal.loads(marshal.dumps(compile('x', '', 'exec'))), {'x': 1})",
        "exec((lambda: 5).__code__.replace(co_name='other'))",
    ],
)
def test_a_code_object_without_a_text_has_a_digest(tmp_path: Path, text: str) -> None:
    texts, _ = seen(tmp_path, text)
    assert texts[str(tmp_path / "mine.py")]


def test_texts_executed_by_the_standard_library_are_ignored(tmp_path: Path) -> None:
    """Named tuples and dataclasses execute texts; imported code is recorded as a module."""
    texts, files = seen(
        tmp_path,
        "import collections, dataclasses, numpy\n"
        "Pair = collections.namedtuple('Pair', 'a b')\n"
        "Point = dataclasses.make_dataclass('Point', ['x'])\n",
    )
    assert not texts
    assert not files
