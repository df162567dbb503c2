"""Claims usually made for such systems, set up as they were claimed. They need GPUs."""

import pytest
from recipes import claim_1b3_4x8, claim_175m_b64, claim_memory

from harness import scaling


@pytest.mark.acceptance
@scaling(claim_175m_b64, claim_1b3_4x8, claim_memory)
def test_claims(verdict):
    """As claimed, or not."""
