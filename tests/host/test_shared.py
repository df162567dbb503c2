"""Shared data is read-only for launches, or changes to it are detected."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.host import copies

PROGRAM = """
import os, sys
from pathlib import Path
from harness.host import copies
data = Path(sys.argv[1])
print(copies.read_only([data]))
for write in (
    lambda: (data / "a").write_text("other"),
    lambda: (data / "new").write_text("other"),
    lambda: (data / "a").unlink(),
    lambda: os.truncate(data / "a", 0),
):
    try:
        write()
        print("written")
    except OSError as error:
        print(error.strerror)
Path(sys.argv[2]).write_text((data / "a").read_text())
print(os.getuid() == int(sys.argv[3]))
"""


def test_shared_data_is_read_only_for_one_process_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("mine")
    words = [sys.executable, "-c", PROGRAM, str(data), str(tmp_path / "out"), str(os.getuid())]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    output = done.stdout.splitlines()
    if output[0] == "False":
        pytest.skip("this kernel lets no user have a namespace of their own")
    assert output == ["True", *["Read-only file system"] * 4, "True"]
    assert (tmp_path / "out").read_text() == "mine"
    (data / "a").write_text("by its owner")


def appended(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def replaced(path: Path) -> None:
    path.with_name("new").write_text("mine")
    path.with_name("new").replace(path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (appended, "data/a was changed"),
        (replaced, "data/a was changed"),
        (Path.unlink, "data/a was removed"),
        (lambda path: path.with_name("b").write_text(""), "data/b was written"),
    ],
)
def test_a_change_of_shared_data_is_named(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("mine")
    before = copies.shared_stamps(tmp_path, ["data"])
    assert not copies.changed_shared_files(before, copies.shared_stamps(tmp_path, ["data"]))
    write(data / "a")
    assert copies.changed_shared_files(before, copies.shared_stamps(tmp_path, ["data"])) == [
        message
    ]
