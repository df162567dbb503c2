"""The paced simulated workload of another software version: PLANTED_SLOWER=0.05 adds 5 % per step.

It keeps a schedule, so that a nightly run or a probe takes seconds, and its noise is known;
PLANTED_DRAW selects another sample of that noise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.base.documents import Json
from harness.cases import CaseSpec
from harness.training.models import paced
from harness.training.models.paced import batch, build, flops, loss, step_s  # noqa: F401

SIZES = {"small": dict(width=64, layers=4, layer_kb=64, batch=8)}
KNOBS = dict(mode="schedule", step_ms=20.0, plant="", noise=0.01)
STAND_IN = "paced"
AT_ONCE = dict(step_ms=0.0)


def period_s(size: Mapping[str, Json], case: CaseSpec, draw: int) -> float | None:
    """The schedule of the version that trains."""
    usual = paced.period_s(size, case, draw + 1_000_003 * int(os.environ.get("PLANTED_DRAW", "0")))
    slower = float(os.environ.get("PLANTED_SLOWER", "0"))
    return None if usual is None else usual * (1 + slower)
