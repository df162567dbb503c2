"""Pipeline: weak scaling with real compute, and with simulated compute on up to 4 ranks."""

import pytest
from recipes import filled, paced

from harness import scaling


@pytest.mark.smoke
@scaling(filled())
def test_weak(verdict):
    """Throughput per rank stays as high as the threshold requires when ranks are added."""


@pytest.mark.smoke
@scaling(paced("pipeline", smallest=4))
def test_paced(verdict):
    """Weak scaling of the real sends and receives with simulated compute, on 4 ranks."""
