"""The instrument measures itself: scheduled stand-ins with a known efficiency."""

import pytest
from recipes import planted

from harness import scaling


@pytest.mark.smoke
@scaling(planted("ddp", "2:0.85", largest=2))
def test_planted(verdict):
    """A planted efficiency is found again."""
