"""Compressed gradients: weak-scaling sweeps of top-k, and a control that must be detected."""

import pytest
from recipes import codecs, masked, paced, topk

from harness import scaling


@pytest.mark.smoke
@scaling(topk)
def test_weak(verdict):
    """Throughput per rank stays constant as ranks are added."""


@pytest.mark.smoke
@scaling(paced("compressed:topk", smallest=4))
def test_paced(verdict):
    """The real communication hook scales with simulated compute."""


@pytest.mark.smoke
@scaling(masked())
def test_control(verdict):
    """The byte check detects a compressor that masks gradients but sends all of them."""


@pytest.mark.nightly
@scaling(codecs)
def test_codecs(verdict):
    """Every compressor is compared with dense training: throughput and bytes sent."""
