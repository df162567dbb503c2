"""Pipeline: weak scaling with real compute, and with simulated compute up to 4 ranks."""

import pytest
from recipes import filled, paced

from harness import scaling


@pytest.mark.smoke
@scaling(filled())
def test_weak(verdict):
    """Throughput per rank stays constant as ranks are added."""


@pytest.mark.smoke
@scaling(paced("pipeline", smallest=4))
def test_paced(verdict):
    """The real sends and receives scale with simulated compute."""
