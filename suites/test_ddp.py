"""DDP: weak and strong ladders in real compute, paced ones up to 4 and 8 ranks."""

import pytest
from recipes import eager, paced, strong, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("ddp"))
def test_weak(verdict):
    """Throughput per rank holds as ranks are added."""


@pytest.mark.smoke
@scaling(eager("ddp"))
def test_eager(verdict):
    """Compiled blocks beside eager ones: a slower step hides more of its communication."""


@pytest.mark.smoke
@scaling(strong("ddp", global_batch=8))
def test_strong(verdict):
    """A fixed global batch takes less time with more ranks."""


@pytest.mark.smoke
@scaling(paced("ddp"))
def test_paced(verdict):
    """The real all-reduce with paced compute."""


@pytest.mark.nightly
@scaling(paced("ddp", largest=8))
def test_paced_wide(verdict):
    """The same on 8 ranks."""
