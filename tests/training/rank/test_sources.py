"""Which files of loaded modules count as the user's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.base.programs import PACKAGE
from harness.training.rank import sources


def test_an_installed_link_to_a_users_file_counts_as_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of_others, mine = tmp_path / "installed", tmp_path / "mine"
    for folder in (folder_of_others, mine):
        folder.mkdir()
        (folder / "plain.py").write_text("")
    (folder_of_others / "linked.py").symlink_to(mine / "linked.py")
    (mine / "linked.py").write_text("x = 1")
    monkeypatch.setattr(sources, "_installed", lambda: (folder_of_others,))
    sources.is_installed.cache_clear()
    for i, path in enumerate(
        [folder_of_others / "plain.py", folder_of_others / "linked.py", mine / "plain.py"]
    ):
        module = ModuleType(f"of_a_user_{i}")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        known = sources.sources()
    finally:
        sources.is_installed.cache_clear()
    assert str(mine / "linked.py") in known and str(mine / "plain.py") in known
    assert not any(str(folder_of_others) in name for name in known)


def test_modules_that_an_agent_skipped_hide_no_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files loaded later are found, also under the name of a module that existed before."""

    def module(name: str, file: str) -> ModuleType:
        (tmp_path / file).write_text("x = 1")
        made = ModuleType(name)
        made.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    module("a_users_from_before", "before.py")
    monkeypatch.setitem(sys.modules, "taken_by_a_user", ModuleType("nobodys"))
    monkeypatch.setattr(sources, "_passed_over", [])
    monkeypatch.setattr(sources, "_known", set())
    everything = sources.sources()
    sources.pass_over()
    assert sources.sources() == everything, "no file is passed over"
    assert len(sources._known) > 100
    module("taken_by_a_user", "taken.py")
    module("a_users", "later.py")
    known = {Path(name).name for name in sources.sources()}
    assert {"before.py", "taken.py", "later.py"} <= known
    monkeypatch.delitem(sys.modules, "a_users")
    assert "later.py" not in {Path(name).name for name in sources.sources()}


def test_a_file_of_the_case_is_among_them_wherever_it_lies(tmp_path: Path) -> None:
    """A file of the case is included even if it is installed."""
    folder = next(path for path in sources._installed() if path != PACKAGE)
    file = next(folder.rglob("*.py"))
    named = [str(file), "harness.training.models.mlp"]
    assert set(sources.sources(named)) - set(sources.sources()) == {str(file)}
