"""Sweeps over length, size, batch, interference, power limits, readers and checkpoints."""

import pytest
from ladders import batches, checkpoints, interference, lengths, power_caps, readers, sizes

from harness import recovering, scaling

pytestmark = pytest.mark.nightly


@scaling(lengths)
def test_lengths(verdict):
    """Sequences get longer at constant tokens per rank."""


@scaling(sizes)
def test_sizes(verdict):
    """Models get larger on the same devices."""


@scaling(batches)
def test_batches(verdict):
    """Samples and time to one loss are measured for each batch size."""


@scaling(interference)
def test_interference(verdict):
    """A second job on the same network slows a first one."""


@scaling(power_caps)
def test_power_caps(verdict):
    """Energy per token and speed are measured as the power limit of GPUs decreases."""


@scaling(readers)
def test_readers(verdict):
    """The cost of reading files is measured as more ranks read."""


@recovering(checkpoints)
def test_checkpoints(verdict):
    """Bandwidth and stall of checkpoints are measured as ranks are added."""
