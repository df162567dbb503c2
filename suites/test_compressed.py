"""Compressed gradients: weak ladders of top-k, and the masked control that must be caught."""

import pytest
from recipes import codecs, masked, paced, topk

from harness import scaling


@pytest.mark.smoke
@scaling(topk)
def test_weak(verdict):
    """Throughput per rank holds as ranks are added."""


@pytest.mark.smoke
@scaling(paced("compressed:topk", smallest=4))
def test_paced(verdict):
    """The real communication hook with paced compute."""


@pytest.mark.smoke
@scaling(masked())
def test_control(verdict):
    """The byte check catches a compressor that masks gradients but sends all of them."""


@pytest.mark.nightly
@scaling(codecs)
def test_codecs(verdict):
    """Every compressor beside dense training: throughput, and what is sent."""
