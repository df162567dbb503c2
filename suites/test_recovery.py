"""Recovery: trainings with injected faults must resume from a checkpoint, equal bit for bit."""

import pytest
from recipes import broken

from harness import recovering


@pytest.mark.nightly
@pytest.mark.acceptance
@recovering(broken("ddp"), broken("fsdp"))
def test_recovery(verdict):
    """Every recovery takes at most the claimed time."""
