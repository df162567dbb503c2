"""Recovery: training runs with injected faults must resume from a checkpoint, bit for bit."""

import pytest
from recipes import broken

from harness import recovering


@pytest.mark.nightly
@pytest.mark.acceptance
@recovering(broken("ddp"), broken("fsdp"))
def test_recovery(verdict):
    """Every recovery takes no longer than the claimed time."""
