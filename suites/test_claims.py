"""Measure published claims about scaling in the claimed setup, which needs GPUs.

Without GPUs, the twin of each claim (simulated compute with a known result) is measured in the same
way. Claims that are not tested are listed.
"""

import pytest
from recipes import claim_1b3_4x8, claim_175m_b64, claim_memory

from harness import scaling


@pytest.mark.acceptance
@scaling(claim_175m_b64, claim_1b3_4x8, claim_memory)
def test_claims(verdict):
    """Each published claim is confirmed or refuted."""
