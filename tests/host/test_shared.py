"""A change of data that launches share is detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.host import copies


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
