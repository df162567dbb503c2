"""The cost of communication between nodes. On one node this suite is empty."""

import pytest
from recipes import across, spread

from harness import scaling


@pytest.mark.smoke
@scaling(spread("ddp"), spread("fsdp"))
def test_shape(verdict):
    """The same number of ranks is slower on several nodes than on one: 2x4 against 1x8."""


@pytest.mark.smoke
@scaling(across("ddp"), across("fsdp"))
def test_across(verdict):
    """Whole nodes scale against one node; every larger world crosses the network."""
