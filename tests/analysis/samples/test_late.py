"""A rank that the others wait for is told by the time that each takes up to its backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.analysis.samples.script import late
from harness.record import Watched


def seen(ahead_s: float) -> Watched:
    return Watched(
        world_size=2, backend="gloo", optimizers=("SGD",), backwards=1, regular=True, even=True,
        roots={}, start="", first="", sharded=False, parameter_bytes=0, collectives={},
        ahead_s=ahead_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ahead_s", "wanted"),
    [
        ((0.01, 0.11), (1, 0.10)),
        ((0.11, 0.01, 0.02, 0.01), (0, 0.10)),
        ((0.01, 0.012), None),  # less than a quarter of a step
        ((0.0, 0.11), None),  # a record of before, or a loop that is not seen
        ((0.11,), None),
    ],
)
def test_a_late_rank_is_told(ahead_s: Sequence[float], wanted: tuple[int, float] | None) -> None:
    heard = late([seen(s) for s in ahead_s], step_s=0.13)
    assert (heard is None) == (wanted is None)
    if heard is not None and wanted is not None:
        assert heard[0] == wanted[0] and heard[1] == pytest.approx(wanted[1])


def test_short_steps_jitter_by_more_than_a_quarter() -> None:
    assert late([seen(1e-4), seen(1e-3)], step_s=1e-3) is None
