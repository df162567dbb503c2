"""FSDP2: a weak ladder in real compute, and a paced one up to 4 ranks."""

import pytest
from recipes import paced, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("fsdp"))
def test_weak(verdict):
    """Throughput per rank holds as ranks are added."""


@pytest.mark.smoke
@scaling(paced("fsdp"))
def test_paced(verdict):
    """The real collectives with paced compute."""
