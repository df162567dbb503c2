"""Several nodes: the cost of crossing between nodes. On one node this suite is empty."""

import pytest
from recipes import across, spread

from harness import scaling


@pytest.mark.smoke
@scaling(spread("ddp"), spread("fsdp"))
def test_shape(verdict):
    """The same ranks on one node and spread over several: 1x8 against 2x4."""


@pytest.mark.smoke
@scaling(across("ddp"), across("fsdp"))
def test_across(verdict):
    """Whole nodes with the first node as baseline: every larger rung crosses the network."""
