"""A launch may be as far from its reference as rounding moves replicates, and no farther."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.record import UNCHECKED
from harness.training.rank import tolerance as tolerance_
from harness.training.rank.oracle import scale
from harness.training.rank.tolerance import (
    DEVIATIONS,
    FACTOR,
    FLOOR,
    LARGEST,
    Outcome,
    Tolerance,
    rounded_scale,
)

EPS = 1e-7


def tolerance(distances: list[float], *, exact: bool = False) -> tuple[Tolerance, Any]:
    """Return a tolerance whose replicates have these distances, and the function that reads them."""
    made = [Outcome(loss=distance, gradients={}, parameters={}) for distance in distances]
    ctx: Any = SimpleNamespace(gather=lambda value: [value])
    bounds = Tolerance(ctx=ctx, exact=exact, eps=EPS, layers=True, outcomes=lambda: made)
    return bounds, lambda outcome: outcome.loss


@pytest.mark.parametrize(
    ("error", "distances", "ok", "unchecked"),
    [
        (FLOOR * EPS, [math.nan], True, False),
        (1e-3, [1e-4, 6e-4], True, False),
        (1e-3, [1e-4, 4e-4], False, False),
        (LARGEST, [0.1, LARGEST], True, True),
        (FACTOR + 1e-3, [1.0], False, False),
        (1e-3, [math.inf], False, False),
        (1e-3, [math.nan], False, False),
        (math.nan, [1.0], False, False),
        (math.inf, [math.inf], False, False),
    ],
)
def test_errors_are_compared_with_those_of_replicates(
    error: float, distances: list[float], ok: bool, unchecked: bool
) -> None:
    bounds, distance = tolerance(distances)
    check = bounds.check("x", error, distance)
    assert (check.ok, UNCHECKED in check.detail) == (ok, unchecked), check


def test_a_compressors_bound_is_not_rounding() -> None:
    bounds, distance = tolerance([1e-4])
    check = bounds.check("x", 0.9, distance, least=1.0)
    assert check.ok and UNCHECKED not in check.detail


def test_bits_that_must_be_equal_have_no_replicates() -> None:
    bounds, distance = tolerance([1.0], exact=True)
    assert bounds.check("x", 0.0, distance).ok and not bounds.check("x", 1e-9, distance).ok


@pytest.mark.parametrize(("deviations", "alarms"), [(DEVIATIONS, range(1)), (0.0, range(5, 50))])
def test_the_scale_of_a_rounded_gradient_is_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch, deviations: float, alarms: range
) -> None:
    """The scale is one random number, so the largest of five replicates alone bounds it badly."""
    monkeypatch.setattr(tolerance_, "DEVIATIONS", deviations)
    draw = torch.Generator().manual_seed(0)
    exact = torch.exp(torch.randn(500, generator=draw, dtype=torch.float64))
    wanted = {"weight": exact}
    rounded = exact * (1 + 0.004 * (2 * torch.rand(1000, 6, 500, generator=draw) - 1))
    found = 0
    for launch, *replicates in rounded:
        off = abs(scale(iter({"weight": launch}.items()), wanted) - 1)
        allowed = FACTOR * max(rounded_scale({"weight": other}, wanted) for other in replicates)
        found += off > allowed
        assert allowed < 1 - 0.99, "a wrong factor of 1 % is found"
    assert found in alarms
