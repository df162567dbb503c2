"""Bisection under noise: how often it is correct, and how many launches it needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.features.history.bisection import Bisection


def found(first: int, step: float, sd: float, draw: np.random.Generator) -> tuple[bool, int]:
    """Return whether the first bad one of 16 versions was found, and the number of launches."""
    search, launches = Bisection(16, 0.05), 0
    while (version := search.next) is not None and launches < 400:
        search.add(version, list(draw.normal(step * (version >= first), sd, 2)))
        launches += 4
    return bool(search.apart) and search.answer[0] == first, launches


@pytest.mark.parametrize(
    ("step", "sd", "right", "launches"),
    [
        (0.05, 0.0133, 0.99, 27),
        (0.03, 0.0133, 0.95, 40),
        pytest.param(0.02, 0.0133, 0.93, 75, marks=pytest.mark.full),
    ],
)
def test_bisection_has_its_stated_accuracy_with_few_launches(
    step: float, sd: float, right: float, launches: float
) -> None:
    draw = np.random.default_rng(1)
    tried = [found(int(draw.integers(1, 16)), step, sd, draw) for _ in range(300)]
    assert np.mean([ok for ok, _ in tried]) >= right
    assert np.mean([n for _, n in tried]) <= launches


@pytest.mark.parametrize("first", range(1, 16))
def test_without_noise_every_version_is_found(first: int) -> None:
    assert found(first, 0.05, 1e-4, np.random.default_rng(first))[0]


@pytest.mark.full
def test_equal_versions_are_not_distinguished() -> None:
    draw = np.random.default_rng(3)
    wrong = 0
    for _ in range(40):
        search = Bisection(16, 0.05)
        while search.next is not None:
            search.add(search.next, list(draw.normal(0, 0.01, 2)))
            if len(search.pairs.get(15, ())) > 40:
                break
        wrong += bool(search.apart)
    assert wrong <= 7, "the search tests after every block at four standard errors"


@given(st.lists(st.floats(-0.2, 0.2), min_size=4, max_size=12), st.integers(2, 15))
def test_unmeasured_versions_are_equally_likely(ends: list[float], count: int) -> None:
    search = Bisection(count + 1, 0.05, {count: ends})
    assert search.posterior == pytest.approx(np.full(count, 1 / count))


@given(st.floats(0.01, 0.3), st.integers(1, 14))
def test_a_good_version_rules_out_those_before_it(step: float, good: int) -> None:
    pairs = {15: [step, step * 1.01, step, step * 0.99], good: [0.0, 1e-3 * step]}
    posterior = Bisection(16, 0.05, pairs).posterior
    assert posterior[:good].max() < posterior[good:].min()


def test_plain_bisection_needs_more_launches_if_noise_is_large() -> None:
    draw = np.random.default_rng(5)
    quiet, noisy = (
        Bisection(16, 0.05, {15: list(draw.normal(0.03, sd, 8))}).plain() for sd in (0.003, 0.03)
    )
    assert quiet == 10 and noisy > 100, (
        "low noise needs one pair for each of five probes, high noise needs many"
    )
