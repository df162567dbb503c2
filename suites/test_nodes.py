"""Several nodes: what it costs to cross from one to another. Nothing is collected on one node."""

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
    """Whole nodes against the first one: every rung crosses the network."""
