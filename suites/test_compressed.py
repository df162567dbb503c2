"""Compressed gradients: weak scaling of top-k, and a negative control that must be detected."""

import pytest
from recipes import codecs, masked, paced, topk

from harness import scaling


@pytest.mark.smoke
@scaling(topk)
def test_weak(verdict):
    """Throughput per rank stays as high as the threshold requires when ranks are added."""


@pytest.mark.smoke
@scaling(paced("compressed:topk", smallest=4))
def test_paced(verdict):
    """Weak scaling of the real communication hook with simulated compute."""


@pytest.mark.smoke
@scaling(masked())
def test_control(verdict):
    """The check of sent bytes detects a compressor that masks gradients but sends all of them."""


@pytest.mark.nightly
@scaling(codecs)
def test_codecs(verdict):
    """Throughput and sent bytes of every compressor, compared with dense training."""
