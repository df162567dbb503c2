"""A script works in a copy of its folder, so it cannot change the user's files."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.host import copies

LARGE = os.urandom(3 << 20)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a large checkpoint, a linked folder, and many files."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "home"
    elsewhere.mkdir()
    (elsewhere / "last.pt").write_bytes(LARGE)
    folder.mkdir()
    (folder / "model.pt").write_bytes(LARGE)
    (folder / "checkpoints").symlink_to(elsewhere)
    (folder / "latest.pt").symlink_to("model.pt")
    (folder / "linked.pt").symlink_to(elsewhere / "last.pt")
    (folder / "many").mkdir()
    for i in range(5_200):
        (folder / "many" / f"{i:04}").write_text("mine")
    return folder


def contents(*folders: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for f in folders for path in sorted(f.rglob("*")) if path.is_file()
    }


def saved(path: Path) -> None:
    path.write_bytes(b"overwritten")


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:4] = b"over"


def renamed(path: Path) -> None:
    path.with_name("new").write_bytes(b"overwritten")
    path.with_name("new").replace(path)


@pytest.mark.few(2)
@pytest.mark.parametrize("write", [saved, appended, mapped, renamed, Path.unlink])
def test_writes_to_a_copy_do_not_reach_the_original(
    home: Path, tmp_path: Path, write: Callable[[Path], object]
) -> None:
    elsewhere, copy = tmp_path / "elsewhere", tmp_path / "run" / "work0"
    before = contents(home, elsewhere)
    copies.copy(home, copy, tmp_path / "run")
    assert (copy / "checkpoints" / "last.pt").read_bytes() == LARGE
    names = ("model.pt", "latest.pt", "linked.pt", "checkpoints/last.pt", "many/5100")
    for name in names if write is not Path.unlink else names[1:]:
        write(copy / name)
    (copy / "checkpoints" / "new.pt").write_bytes(b"new")
    shutil.rmtree(copy / "many")
    assert contents(home, elsewhere) == before


def test_a_link_within_the_folder_is_a_link_within_the_copy(home: Path, tmp_path: Path) -> None:
    copies.copy(home, tmp_path / "work0", tmp_path)
    (tmp_path / "work0" / "latest.pt").write_bytes(b"new")
    assert (tmp_path / "work0" / "model.pt").read_bytes() == b"new"


def test_circular_and_broken_links_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "up" / "home"
    folder.mkdir(parents=True)
    (folder / "train.py").touch()
    (folder / "above").symlink_to(tmp_path / "up")
    (folder / "itself").symlink_to("itself")
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    copies.copy(folder, tmp_path / "work0", tmp_path / "results")
    assert (tmp_path / "work0" / "train.py").is_file()
    assert not (tmp_path / "work0" / "above").exists()


def test_a_linked_folder_that_links_to_itself_is_copied_once(tmp_path: Path) -> None:
    """Following several such links would visit an exponential number of paths."""
    data, folder = tmp_path / "data", tmp_path / "home"
    (data / "deep").mkdir(parents=True)
    (data / "train.bin").write_text("numbers")
    folder.mkdir()
    (folder / "data").symlink_to(data)
    for name in ("again", "Datasets", "deep/up"):
        (data / name).symlink_to(data)
    copies.copy(folder, tmp_path / "copy", tmp_path / "results")
    copied = tmp_path / "copy" / "data"
    assert len(list(copies.entries(folder, tmp_path / "results"))) == 6
    for name in ("again", "deep/up/Datasets"):
        assert (copied / name).resolve() == copied
        assert (copied / name / "train.bin").read_text() == "numbers"
    (copied / "again" / "train.bin").write_text("changed")
    assert (data / "train.bin").read_text() == "numbers"


def test_read_only_data_is_shared(home: Path, tmp_path: Path) -> None:
    copies.copy(home, tmp_path / "work0", tmp_path, ("many", "checkpoints"))
    assert (tmp_path / "work0" / "many").resolve() == home / "many"
    assert (tmp_path / "work0" / "checkpoints").resolve() == tmp_path / "elsewhere"
    assert not (tmp_path / "work0" / "model.pt").is_symlink()


def test_results_and_version_histories_are_left_out(tmp_path: Path) -> None:
    for name in ("results/runs/a/b", ".git", "src/__pycache__"):
        (tmp_path / "home" / name).mkdir(parents=True)
    results = tmp_path / "home" / "results"
    copies.copy(tmp_path / "home", results / "runs/a/b/work0", results / "runs/a/b")
    made = results / "runs/a/b/work0"
    assert sorted(str(p.relative_to(made)) for p in made.rglob("*")) == ["src"]


@pytest.mark.parametrize(("most", "value"), [("MOST_BYTES", 4 << 20), ("MOST_FILES", 5_000)])
def test_a_folder_too_large_to_copy_is_refused_with_a_fix(
    home: Path, tmp_path: Path, most: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.refuse_large.cache_clear()
    copies.refuse_large(home, tmp_path, ())
    monkeypatch.setattr(copies, most, value)
    copies.refuse_large.cache_clear()
    largest = "many" if most == "MOST_FILES" else "checkpoints"
    with pytest.raises(SpecError, match=f"--data {largest}"):
        copies.refuse_large(home, tmp_path, ())
    shared = ("many", "checkpoints", "linked.pt")
    copies.refuse_large(home, tmp_path, shared)
    with pytest.raises(SpecError, match="no such file or folder"):
        copies.refuse_missing(home, "--data", ["many", "nothing"])
