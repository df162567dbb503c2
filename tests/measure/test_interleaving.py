"""Interleaved differences: how often equal environments are told apart, and what 2 % takes."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.compare import Reading
from harness.measure.setups.interleaving import FEWEST, MOST, difference


def decided(longer: float, sd: float, draw: np.random.Generator) -> tuple[Reading, int]:
    """What blocks of two pairs end with, as ``compared`` looks at them."""
    pairs: list[float] = []
    while True:
        pairs += list(draw.normal(longer, sd, 2))
        reading = difference("case", pairs).reading
        if len(pairs) >= 2 * FEWEST and reading is not Reading.UNDECIDED:
            return reading, len(pairs)
        if len(pairs) >= 2 * MOST:
            return reading, len(pairs)


def test_equal_environments_are_told_apart_once_in_twenty_at_most() -> None:
    draw = np.random.default_rng(1)
    found = [decided(0.0, 0.01, draw)[0] for _ in range(400)]
    wrong = sum(r in (Reading.FASTER, Reading.SLOWER) for r in found)
    assert wrong <= 0.05 * len(found)
    assert found.count(Reading.SAME) >= 0.8 * len(found)


@pytest.mark.parametrize(("longer", "reading"), [(0.02, Reading.SLOWER), (-0.02, Reading.FASTER)])
def test_two_percent_are_found(longer: float, reading: Reading) -> None:
    draw = np.random.default_rng(2)
    found = [decided(longer, 0.01, draw) for _ in range(200)]
    assert sum(r is reading for r, _ in found) >= 198
    assert np.mean([n for _, n in found]) <= 12
