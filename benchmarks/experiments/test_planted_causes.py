"""Tests that injected causes are named; ``-m full`` also tests their sizes, and pairs of causes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.experiments import causes
from harness.record import Budget

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[causes.Stand]:
    stand = causes.Stand(tmp_path_factory.mktemp("causes"))
    yield stand
    stand.close()


#: Causes that CI injects; tox -e full injects all.
SOON = ("late", "data")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "plant",
    [pytest.param(p, marks=[pytest.mark.full] * (p not in SOON)) for p in (*causes.DDP, "uneven")],
)
def test_a_cause_is_called_by_its_name(bench: causes.Stand, plant: str) -> None:
    """The cause takes 60 ms in a step of 50 ms, which is more than background load adds to another
    term.
    """
    budget = bench.profile(causes.case_of((plant,), 2, 60.0, bench.known))
    bare = bare_one(bench, plant == "uneven")
    assert causes.misnamed((plant,), budget, bare) == ""


@pytest.mark.parametrize(
    "plants", [pytest.param(p, marks=pytest.mark.full) for p in (("stall",), ("late", "link"))]
)
def test_a_cause_is_found_among_operators(tmp_path: Path, plants: tuple[str, ...]) -> None:
    """A stall inside of forward counts as idleness only if operators are recorded."""
    bench = causes.Stand(tmp_path, outline=False)
    try:
        bare, budget = (
            bench.profile(causes.case_of(p, 2, 60.0, bench.known)) for p in ((), plants)
        )
    finally:
        bench.close()
    assert budget.capture == "operators" and causes.misnamed(plants, budget, bare) == ""


@functools.cache
def bare_one(bench: causes.Stand, pipeline: bool) -> Budget:
    """Return the budget of the case without a cause."""
    plants = ("pipeline",) if pipeline else ()
    return bench.profile(causes.case_of(plants, 2, 60.0, bench.known))


def test_a_cause_called_by_another_name_is_caught(bench: causes.Stand) -> None:
    """The check itself works: a late rank is not accepted as a data stall."""
    budget = bench.profile(causes.case_of(("late",), 2, 60.0, bench.known))
    bare = bare_one(bench, pipeline=False)
    assert "largest growth is" in causes.misnamed(("data",), budget, bare)


@pytest.mark.full
@pytest.mark.parametrize("outline", [True, False])
def test_every_cause_has_its_size(tmp_path: Path, outline: bool) -> None:
    rows = list(causes.measure((2, 4), causes.sets(), 3, 60.0, tmp_path, outline))
    assert [r for r in rows if not r.ok] == []
