"""FSDP2: weak scaling with real compute, and with simulated compute on 2 and up to 4 ranks."""

import pytest
from recipes import large, paced, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("fsdp"))
def test_weak(verdict):
    """Throughput per rank stays constant as ranks are added."""


@pytest.mark.nightly
@scaling(large("decoder-llama-8b"))
def test_large(verdict):
    """A model that does not fit on one GPU scales from half a node to a whole node."""


@pytest.mark.smoke
@scaling(paced("fsdp", largest=2))
def test_paced(verdict):
    """The real collectives scale with simulated compute."""


@pytest.mark.nightly
@scaling(paced("fsdp"))
def test_paced_wide(verdict):
    """The real collectives scale with simulated compute up to 4 ranks."""
