"""Recording of steps in a window: memory, losses, marks and samples."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from harness.analysis.samples import figures
from harness.launch.wire.beats import Phase
from harness.record.store import Samples
from harness.training.accelerator import Accelerator
from harness.training.data import Batch
from harness.training.observe.intake import Intake, row_hashes
from harness.training.observe.memory import Memory
from harness.training.rank import window
from harness.training.rank.window import StepLog


class Growing:
    """A trainer that keeps 256 kB more of memory after each step."""

    def __init__(self) -> None:
        self.held: list[mmap.mmap] = []

    def step(self, batch: Batch) -> torch.Tensor:
        fresh = mmap.mmap(-1, 1 << 18)  # memory that no allocator has cached
        fresh.write(bytes(1 << 18))
        self.held.append(fresh)
        return torch.tensor(float(len(self.held)))


def logged(kept: int) -> Samples:
    """Return the samples of a window of ``kept`` steps without warm-up."""
    batch = Batch(ids=torch.zeros(1), inputs=torch.zeros(1, 1), targets=torch.zeros(1))
    memory = Memory(Accelerator(torch.device("cpu")))
    memory.spread(kept)
    log = StepLog(
        Growing(),  # type: ignore[arg-type]
        kept,
        memory=memory,
        beat=lambda phase, step: None,
        period_s=None,
        events=[],
        intake=Intake(),
    )
    log.start(0)
    for i in range(kept):
        log.run(i, lambda step: batch, Phase.STEADY)
    feed = lambda step: batch  # noqa: E731
    return log.samples(feed, feed)


@pytest.mark.parametrize(("kept", "looks"), [(12, 6), (20, 10), (40, 10), (100, 10), (333, 11)])
def test_memory_is_sampled_often_enough_for_its_growth(kept: int, looks: int) -> None:
    samples = logged(kept)
    assert np.count_nonzero(samples.rss_bytes) == looks
    growth = figures.growth([samples], 0)
    assert growth is not None and growth.slope == pytest.approx(1 << 18, rel=0.25)


def test_every_loss_and_mark_is_recorded() -> None:
    samples = logged(12)
    assert samples.loss.tolist() == list(range(1, 13)) and samples.loss.dtype == np.float64
    assert samples.marks_s.shape == (13,) and samples.marks_s[0] == 0
    assert (np.diff(samples.marks_s) > 0).all() and samples.rss_bytes.dtype == np.int64


def test_a_pool_tensor_with_replaced_memory_is_hashed_anew() -> None:
    """Tensors are recognised by their storage, not by identity, and hashed within the window."""
    pool = torch.arange(8.0).reshape(2, 4)
    intake = Intake()
    intake.pool(pool)
    model = nn.Sequential(nn.Identity())
    intake.watch(model)
    model(pool)
    model(pool[1:])  # a view of the pool
    of_pool = pool.data
    other = torch.full((2, 4), 7.0)
    pool.data = other
    model(pool)
    pool.data = of_pool
    other.zero_()
    intake.end_step()
    (seen,) = intake.rows()
    wanted = torch.cat([row_hashes(of_pool), row_hashes(torch.full((1, 4), 7.0))])
    assert sorted(h for h in seen.tolist() if h) == sorted(wanted.tolist())


def test_a_subclass_that_claims_to_be_torchs_is_not_accepted() -> None:
    """A tensor subclass that computes its loss lazily would let a step end too early."""
    deferred = type("Deferred", (torch.Tensor,), {"__module__": "torch"})
    assert not window._of_torch(deferred)
    named_alike = type("Tensor", (torch.Tensor,), {"__module__": "torch"})
    assert not window._of_torch(named_alike)
    assert all(map(window._of_torch, (torch.Tensor, nn.Parameter, DTensor)))
