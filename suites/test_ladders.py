"""Ladders beyond weak and strong: length, size, batch, interference, readers, checkpoints."""

import pytest
from ladders import batches, checkpoints, interference, lengths, power_caps, readers, sizes

from harness import recovering, scaling

pytestmark = pytest.mark.nightly


@scaling(lengths)
def test_lengths(verdict):
    """Longer sequences at the same tokens a rank."""


@scaling(sizes)
def test_sizes(verdict):
    """Larger models on the same devices."""


@scaling(batches)
def test_batches(verdict):
    """Samples and time to one loss, batch by batch."""


@scaling(interference)
def test_interference(verdict):
    """What a second job on the same fabric takes of a first one."""


@scaling(power_caps)
def test_power_caps(verdict):
    """Joules of a token, and speed, as GPUs are held at fewer watts."""


@scaling(readers)
def test_readers(verdict):
    """What reading costs as more ranks read."""


@recovering(checkpoints)
def test_checkpoints(verdict):
    """Bandwidth and stall of checkpoints as ranks are added."""
