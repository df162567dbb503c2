"""The sentences of docs/statistics.md agree with its tables."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()
#: Number of rows with noise that the page states to be not declared.
NOT_DECLARED = 7


def test_the_worst_wrong_pass_of_the_declared_noise_is_the_one_that_is_stated() -> None:
    section = PAGE.partition("**The declared noise.**")[2].partition("The last seven rows")[0]
    stated = re.search(r"at most ([\d.]+) % of runs pass", section)
    rows = re.findall(r"^\| (.+) \|$", section, re.M)[1:-NOT_DECLARED]
    figures = [float(cell) for row in rows for cell in row.split(" | ")[1:]]
    assert stated and len(figures) == 84 and float(stated[1]) == max(figures) < 5
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"{stated[1]} %\nin the worst case" in readme


def test_places_that_are_drawn_err_no_more_often_than_is_stated() -> None:
    section = PAGE.partition("**Placement.**")[2].partition("**Launches of real clusters.**")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", section, re.M)[1:]]
    drawn = [float(cell) for row in rows if row[1] == "drawn" for cell in row[3:6]]
    pinned = [float(row[4]) for row in rows if row[1] == "pinned"]
    assert len(drawn) == 30 and max(drawn) < 5
    assert len(pinned) == 10 and min(pinned) > 10


def test_cells_of_the_world_err_as_often_as_is_stated() -> None:
    section = PAGE.partition("**Launches of real clusters.**")[2].partition("### Concurrent")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", section, re.M)[1:]]
    assert len(rows) == 10
    assert {int(row[2]) for row in rows if row[2].strip()} == {0}
    assert "No cell passes wrongly" in section
    wrong_fails = {int(row[3]) for row in rows if row[3].strip() and row[1] == "0.85"}
    assert wrong_fails == {3} and "Three cells fail wrongly" in section
