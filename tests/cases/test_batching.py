"""A global batch is divided among ranks without losing or repeating a sample, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harness.base.errors import SpecError
from harness.cases import Batching, Device, Dim, Mesh, Mode, Site, apportion, batching
from harness.cases.batching import COPIES, alike, copied, copier

SITE = Site(device=Device.CPU, backend="gloo", nodes=(4,))


@given(st.integers(1, 16), st.integers(1, 64), st.integers(1, 8), st.booleans())
def test_weak_batches_grow_with_the_world(
    world: int, micro: int, accumulate: int, whole: bool
) -> None:
    case = replace(SITE.case("ddp/mlp-nano").at(world), accumulate=accumulate)
    cut = batching(case, micro, Mesh({Dim.PP if whole else Dim.DP: world}))
    assert cut.global_batch == micro * world * accumulate


@given(st.integers(1, 16), st.integers(1, 256))
def test_strong_batches_keep_their_size_or_are_refused(world: int, total: int) -> None:
    case = SITE.case("ddp/mlp-nano", Mode.STRONG, global_batch=total).at(world)
    if total % world:
        with pytest.raises(ValueError, match="does not divide"):
            batching(case, 1, Mesh({Dim.DP: world}))
    else:
        assert batching(case, 1, Mesh({Dim.DP: world})).global_batch == total


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 512))
def test_unequal_shares_divide_the_batch_in_proportion(shares: list[float], total: int) -> None:
    parts = apportion(total, shares)
    assert sum(parts) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - total * share / sum(shares)) < 1 + 1e-9


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_shards_are_contiguous_and_all_samples_have_equal_weight(
    micros: list[int], accumulate: int
) -> None:
    mesh = Mesh({Dim.DP: len(micros)})
    cut = Batching(micros=tuple(micros), accumulate=accumulate, mesh=mesh, last=1)
    places = [range(cut.global_batch)[cut.place(i)] for i in range(cut.shards)]
    assert [i for place in places for i in place] == list(range(cut.global_batch))
    for place in places:
        weight = cut.weight(len(place), cut.global_batch) / cut.shards / len(place)
        assert weight == pytest.approx(1 / cut.global_batch)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_a_small_world_keeps_the_batch_per_rank_of_the_large_one(
    world: int, micro: int, accumulate: int
) -> None:
    total = world * micro * accumulate
    target = SITE.case("ddp/mlp-nano", Mode.STRONG, global_batch=total, accumulate=accumulate)
    small = alike(target.at(1), target.at(world))
    assert batching(small, 99, Mesh({Dim.DP: 1})).global_batch == micro * accumulate
    weak = SITE.case("ddp/mlp-nano").at(1)
    assert alike(weak, target.at(world)) is weak, (
        "in weak mode, a rank has the same batch in every world"
    )


@pytest.mark.parametrize(("total", "world"), [(7, 2), (3, 4), (12, 8)])
def test_a_batch_that_does_not_divide_is_refused(total: int, world: int) -> None:
    target = SITE.case("ddp/mlp-nano", Mode.STRONG, global_batch=total).at(world)
    with pytest.raises(SpecError, match="does not divide") as error:
        alike(target.at(1), target)
    assert error.value.fix == f"global_batch={world * max(1, total // world)}"


@given(st.integers(1, 64), st.integers(0, 99))
def test_each_copy_of_a_micro_batch_is_computed_by_another_rank(num_ranks: int, step: int) -> None:
    """Each micro-batch is computed once per copy, on different ranks if there are enough;
    ``copier`` is the inverse of ``copied``.
    """
    for copy in range(COPIES):
        computed = [copied(rank, step, copy, num_ranks) for rank in range(num_ranks)]
        assert sorted(computed) == list(range(num_ranks))
        for rank, micro in enumerate(computed):
            assert copier(micro, step, copy, num_ranks) == rank
    ranks = {copier(0, step, copy, num_ranks) for copy in range(COPIES)}
    assert len(ranks) == min(num_ranks, COPIES)
