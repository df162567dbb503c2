"""FSDP2: a weak ladder in real compute, and paced ones on 2 and up to 4 ranks."""

import pytest
from recipes import large, paced, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("fsdp"))
def test_weak(verdict):
    """Throughput per rank holds as ranks are added."""


@pytest.mark.nightly
@scaling(large("decoder-llama-8b"))
def test_large(verdict):
    """A model that no card holds alone."""


@pytest.mark.smoke
@scaling(paced("fsdp", largest=2))
def test_paced(verdict):
    """The real collectives with paced compute."""


@pytest.mark.nightly
@scaling(paced("fsdp"))
def test_paced_wide(verdict):
    """The same on 4 ranks."""
