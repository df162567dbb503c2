"""The samples of a step: full and short batches, and samples of unequal length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.cases import Batching, Dim, Mesh
from harness.training.data import Sampler
from harness.training.models import decoder, ragged

SIZE = {**decoder.SIZES["nano"], "length_dist": "uniform"}


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_an_epoch_has_each_sample_once_with_equal_weight(
    micros: list[int], steps: int, data: st.DataObject
) -> None:
    """No sample is padded or dropped, whatever the size of the last batch."""
    total, ranks = sum(micros), len(micros)
    last = data.draw(st.integers(1, total))
    cut = Batching(micros=tuple(micros), accumulate=1, mesh=Mesh({Dim.DP: ranks}), last=last)
    sampler = Sampler(cut, steps_per_epoch=steps, seed=0)
    seen: list[int] = []
    for step in range(steps):
        shards = [sampler.ids(step, shard).tolist() for shard in range(ranks)]
        of = sampler.of(step) or total
        assert sum(map(len, shards)) == of == (last if step == steps - 1 else total)
        counted = [cut.weight(len(ids), of) / ranks for ids in shards]
        assert sum(counted) == pytest.approx(1.0)
        seen += [i for ids in shards for i in ids]
    assert sorted(seen) == list(range(sampler.epoch))


@pytest.mark.parametrize("kind", ["uniform", "long_tail"])
def test_ragged_batches_are_as_long_as_their_longest_sample(kind: str) -> None:
    size, ids = {**SIZE, "length_dist": kind}, torch.arange(1, 400)
    lengths = ragged.lengths(ids, size)
    inputs, targets = ragged.batch(ids, size)
    assert inputs.shape == targets.shape == (len(ids), int(lengths.max()))
    assert ((targets != ragged.PADDING).sum(1) == lengths).all()
    assert float(lengths.float().mean()) == pytest.approx(ragged.tokens(size), rel=0.1)
    assert int(ragged.lengths(torch.zeros(1, dtype=torch.int64), size)) == size["seq"]


def test_ragged_samples_have_equal_weight_on_every_rank() -> None:
    """The mean of two shards' losses is the loss of all samples, with and without padding."""
    torch.manual_seed(0)
    model, ids = decoder.build(SIZE), torch.arange(1, 9)

    def loss(of: torch.Tensor) -> float:
        inputs, targets = ragged.batch(of, SIZE)
        with torch.no_grad():
            return float(ragged.loss(model(inputs), targets))

    parts = (loss(ids[:4]) + loss(ids[4:])) / 2
    assert loss(ids) == pytest.approx(parts, rel=1e-6)
    alone = [loss(ids[i : i + 1]) for i in range(len(ids))]
    assert loss(ids) == pytest.approx(sum(alone) / len(alone), rel=1e-6)


def test_counting_on_fake_tensors_leaves_nothing_behind() -> None:
    """A process may count on fake tensors and then train. The size is used nowhere else."""
    size = {**decoder.SIZES["nano"], "seq": 24}
    inputs, _ = decoder.batch(torch.arange(2), size)
    with FakeTensorMode(allow_non_fake_inputs=True):
        decoder.build(size)(inputs)
    assert decoder.build(size)(inputs).isfinite().all()
