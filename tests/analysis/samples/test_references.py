"""Losses are compared with those of the harness's reference training: rounding errors may grow, but
a shortcut must not pass as rounding.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.analysis.samples.references import LossCurve, astray
from harness.record.store import Samples


def make(ids: list[list[int]], loss: float = 1.0) -> Samples:
    n = len(ids)
    return Samples(
        marks_s=np.arange(n + 1.0), loss=np.full(n, loss), sample_ids=np.array(ids),
        rss_bytes=np.zeros(n), step_s=np.ones(n),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("step", "off", "is_told"), [(5, 1e-4, True), (60, 1e-4, False), (60, 1e-2, True)]
)
def test_rounding_errors_may_grow_but_larger_differences_are_found(
    step: int, off: float, is_told: bool
) -> None:
    losses = np.linspace(3, 2, 80)
    mine = losses.copy()
    mine[step:] *= 1 + off
    curve = LossCurve(losses=losses, limit=2e-5)
    samples = dataclasses.replace(make([[0]] * 80), loss=mine)
    assert bool(astray([samples], curve)) is is_told
    assert astray([samples], dataclasses.replace(curve, limit=0.0)), (
        "with limit 0 the losses must be equal to the bit"
    )
