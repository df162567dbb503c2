"""A late rank is found by the time that each rank takes up to its backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.analysis.script.late import late


@pytest.mark.parametrize(
    ("ahead_s", "wanted"),
    [
        ((0.01, 0.11), (1, 0.10)),
        ((0.11, 0.01, 0.02, 0.01), (0, 0.10)),
        ((0.01, 0.012), None),  # The delay is less than a quarter of a step.
        ((0.0, 0.11), None),  # 0.0 means an older record, or a loop that the hooks did not see.
        ((0.11,), None),
    ],
)
def test_a_late_rank_is_reported(
    ahead_s: Sequence[float], wanted: tuple[int, float] | None
) -> None:
    heard = late(ahead_s, [0.0] * len(ahead_s), step_s=0.13)
    assert (heard is None) == (wanted is None)
    if heard is not None and wanted is not None:
        assert heard[0] == wanted[0] and heard[1] == pytest.approx(wanted[1])


def test_short_steps_jitter_by_more_than_a_quarter() -> None:
    assert late([1e-4, 1e-3], [0.0, 0.0], step_s=1e-3) is None


def test_waiting_for_a_core_does_not_count_as_lateness() -> None:
    assert late([0.02, 0.12], [0.0, 0.09], step_s=0.15) is None
    heard = late([0.02, 0.12], [0.0, 0.01], step_s=0.15)
    assert heard is not None and heard == pytest.approx((1, 0.09))


def test_background_load_raises_the_threshold_for_lateness() -> None:
    a_third = [0.02, 0.06], [0.0, 0.0], 0.12
    assert late(*a_third) is not None and late(*a_third, busy=0.5) is None
    assert late([0.02, 0.12], [0.0, 0.0], 0.14, busy=0.9) is not None
