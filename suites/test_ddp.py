"""DDP: weak and strong ladders in real compute, paced ones up to 4 and 8 ranks."""

import pytest
from recipes import paced, strong, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("ddp"))
def test_weak(verdict):
    """Throughput per rank holds as ranks are added."""


@pytest.mark.smoke
@scaling(strong("ddp", global_batch=8))
def test_strong(verdict):
    """A fixed global batch takes less time with more ranks."""


@pytest.mark.nightly
@scaling(strong("ddp", global_batch=8, eager=True))
def test_strong_eager(verdict):
    """The same beside blocks that are not compiled: a slower step hides more communication."""


@pytest.mark.smoke
@scaling(paced("ddp"))
def test_paced(verdict):
    """The real all-reduce with paced compute."""


@pytest.mark.nightly
@scaling(paced("ddp", largest=8))
def test_paced_wide(verdict):
    """The same on 8 ranks."""
