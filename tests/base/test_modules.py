"""A user's file is imported once under any spelling of its path; a failed import leaves no module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.base import programs


def test_a_file_is_imported_once_however_it_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "once_only.py").write_text("import neighbour_of_once\n")
    (tmp_path / "neighbour_of_once.py").write_text("")
    monkeypatch.chdir(tmp_path)
    first = programs.load_module("once_only.py")
    assert programs.load_module(str(tmp_path / "once_only.py")) is first
    assert sys.path.count(str(tmp_path)) == 1


def test_a_file_that_fails_to_import_fails_again(tmp_path: Path) -> None:
    file = tmp_path / "broken_file.py"
    file.write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            programs.load_module(str(file))
