"""Unequal devices get batches in proportion, and every sample has the same weight."""

from __future__ import annotations

from typing import Any

import pytest

from harness.record import Purpose


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("ddp/mlp-nano", (2.0, 1.0)),
        ("ddp/mlp-nano", (3.0, 2.0, 1.0)),
        ("fsdp/mlp-nano", (1.0, 3.0)),
        ("compressed:fp16/mlp-nano", (2.0, 1.0)),
    ],
)
def test_unequal_batches_train_as_one_device_would(
    launch: Any, name: str, shares: tuple[float, ...]
) -> None:
    world = launch(name, len(shares), shares=shares, accumulate=2)
    assert world.cause is None
    assert not world.failed


def test_a_mean_over_ranks_that_forgets_their_sizes_is_caught(launch: Any) -> None:
    """Equal weights of the ranks' mean losses are correct for equal batches only."""
    world = launch("mutant/mlp-nano", 2, shares=(3.0, 1.0))
    assert "sgd.step1_gradient" in {c.name for c in world.failed}


def test_a_rank_may_have_several_cores(launch: Any) -> None:
    world = launch("ddp/mlp-nano", 2, Purpose.TIMED, devices_per_rank=2)
    assert world.cause is None
    assert {len(r.affinity) for r in world.ranks} == {2}
