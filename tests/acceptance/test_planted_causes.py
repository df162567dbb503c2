"""Planted causes are called by their names; ``-m full`` also asks for their sizes, and for pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import causes
import pytest

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[causes.Stand]:
    found = causes.Stand(tmp_path_factory.mktemp("causes"))
    yield found
    found.close()


@pytest.mark.parametrize("plant", [*causes.DDP, "uneven"])
def test_a_cause_is_called_by_its_name(bench: causes.Stand, plant: str) -> None:
    """60 ms in a step of 50: no neighbour on this machine makes as much of another term."""
    (bare_case, case) = (
        causes.case_of(p, 2, 60.0, bench.known)
        for p in (("pipeline",) if plant == "uneven" else (), (plant,))
    )
    found, bare = bench.profile(case), bench.profile(bare_case)
    assert causes.misnamed((plant,), found, bare) == ""


def test_a_cause_called_by_another_name_is_caught(bench: causes.Stand) -> None:
    """The check itself: a late rank is no data stall."""
    found = bench.profile(causes.case_of(("late",), 2, 60.0, bench.known))
    bare = bench.profile(causes.case_of((), 2, 60.0, bench.known))
    assert "largest growth is" in causes.misnamed(("data",), found, bare)


@pytest.mark.full
def test_every_cause_has_its_size(tmp_path: Path) -> None:
    rows = list(causes.measure((2, 4), causes.sets(), 3, 60.0, tmp_path))
    assert [r for r in rows if not r.ok] == []
