"""Several nodes: the cost of communication between nodes. This suite is empty on a single node."""

import pytest
from recipes import across, spread

from harness import scaling


@pytest.mark.smoke
@scaling(spread("ddp"), spread("fsdp"))
def test_shape(verdict):
    """The same number of ranks on one node and spread over several, for example 1x8 and 2x4."""


@pytest.mark.smoke
@scaling(across("ddp"), across("fsdp"))
def test_across(verdict):
    """Weak scaling over whole nodes, relative to one node: larger worlds use the network."""
