"""Recovery: broken on purpose, gone on from the last checkpoint, equal to the bit."""

import pytest
from recipes import broken

from harness import recovering


@pytest.mark.nightly
@recovering(broken("ddp"), broken("fsdp"))
def test_recovery(verdict):
    """Back at work within the time that was claimed, every single time."""
