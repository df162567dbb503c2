"""Synthetic nightly runs, for tests of the history."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Mapping, Sequence

from harness.features.history.night import KeptFigure, Night, Value

CASE = "ddp/decoder-tiny/weak@4gpu"
FIRST = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)
SUBJECT = {"torch": "2.13.0", "driver": "580.1", "suite": "aaaa"}


def value(number: float) -> Value:
    return Value(value=number, launches=(number,))


def night(
    day: int,
    steps: Mapping[str, float],
    *,
    subject: Mapping[str, str] = SUBJECT,
    settings: Mapping[str, str] | None = None,
    control: float | None = None,
    error: str = "",
    hash: str = "h",
    stand_in: bool = False,
    nodes: str = "a",
) -> Night:
    """Make a night with these step times; ``control`` is their ratio to the control's."""
    when = FIRST + datetime.timedelta(days=day)
    cases = {}
    for case, step in steps.items():
        values = {"step_time": value(step)}
        if control is not None:
            values["step_time_to_control"] = Value(value=control, low=control, high=control)
        kept = KeptFigure(
            hash=hash,
            stand_in=stand_in,
            values={} if error else values,
            error=error,
            nodes=nodes,
        )
        cases[case] = kept
    return Night(
        run=f"{when:%Y%m%d-%H%M%S}-{day:04x}", started_at=when.isoformat(), hardware="8x-h100",
        subject=dict(subject), fingerprint={"hardware": "8x-h100", **(settings or {})},
        cases=cases, machine={"cpu": "epyc", "num_cpu": "64", "gpu": "8x H100"},
        folder=f"results/runs/8x-h100/{day}",
    )  # fmt: skip


def noisy(
    levels: Sequence[float], sd: float = 0.005, seed: int = 1, case: str = CASE
) -> list[Night]:
    """Make a night for each level, with noise of this relative standard deviation."""
    draw = random.Random(seed)
    return [night(i, {case: x * math.exp(draw.gauss(0, sd))}) for i, x in enumerate(levels)]
