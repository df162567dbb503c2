"""FSDP2: weak scaling with real compute, and with simulated compute on up to 4 ranks."""

import pytest
from recipes import large, paced, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("fsdp"))
def test_weak(verdict):
    """Throughput per rank stays as high as the threshold requires when ranks are added."""


@pytest.mark.nightly
@scaling(large("decoder-llama-8b"))
def test_large(verdict):
    """Weak scaling of a model that does not fit on one GPU."""


@pytest.mark.smoke
@scaling(paced("fsdp", largest=2))
def test_paced(verdict):
    """Weak scaling of the real collectives with simulated compute, on 2 ranks."""


@pytest.mark.nightly
@scaling(paced("fsdp"))
def test_paced_wide(verdict):
    """Weak scaling of the real collectives with simulated compute, up to 4 ranks."""
