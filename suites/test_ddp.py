"""DDP: weak and strong scaling with real compute, and weak scaling with simulated compute."""

import pytest
from recipes import paced, strong, weak

from harness import scaling


@pytest.mark.smoke
@scaling(weak("ddp"))
def test_weak(verdict):
    """Throughput per rank stays as high as the threshold requires when ranks are added."""


@pytest.mark.smoke
@scaling(strong("ddp", global_batch=8))
def test_strong(verdict):
    """Training on a fixed global batch takes less time with more ranks."""


@pytest.mark.nightly
@scaling(strong("ddp", global_batch=8, eager=True))
def test_strong_eager(verdict):
    """Strong scaling, also without compiled blocks: a slower step hides more communication."""


@pytest.mark.smoke
@scaling(paced("ddp"))
def test_paced(verdict):
    """Weak scaling of the real all-reduce with simulated compute, up to 4 ranks."""


@pytest.mark.nightly
@scaling(paced("ddp", largest=8))
def test_paced_wide(verdict):
    """Weak scaling of the real all-reduce with simulated compute, up to 8 ranks."""
