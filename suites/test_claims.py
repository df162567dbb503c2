"""Tests of published claims, measured in the claimed setup. The claims need GPUs.

Without GPUs, each plan runs with simulated compute or a small model. Claims that no plan tests are
listed.
"""

import pytest
from recipes import claim_1b3_4x8, claim_175m_b64, claim_memory

from harness import scaling


@pytest.mark.acceptance
@scaling(claim_175m_b64, claim_1b3_4x8, claim_memory)
def test_claims(verdict):
    """Each claim is confirmed or refuted."""
