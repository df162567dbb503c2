"""Sweeps over other quantities than ranks: sequence length, model size, batch, power, readers."""

import pytest
from ladders import batches, checkpoints, interference, lengths, power_caps, readers, sizes

from harness import recovering, scaling

pytestmark = pytest.mark.nightly


@scaling(lengths)
def test_lengths(verdict):
    """Longer sequences, with the same number of tokens per rank."""


@scaling(sizes)
def test_sizes(verdict):
    """Ever larger models on the same devices."""


@scaling(batches)
def test_batches(verdict):
    """The samples and the time that each batch size needs to reach the same loss."""


@scaling(interference)
def test_interference(verdict):
    """The slowdown of a job by a second job on the same nodes."""


@scaling(power_caps)
def test_power_caps(verdict):
    """Speed and energy per token of GPUs under lower power limits."""


@scaling(readers)
def test_readers(verdict):
    """The cost of reading files as the number of reading ranks grows."""


@recovering(checkpoints)
def test_checkpoints(verdict):
    """The bandwidth of checkpoints, and the time that training waits for them, over ranks."""
