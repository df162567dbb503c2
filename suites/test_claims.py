"""Published claims for such systems, measured in the claimed setup. The claims need GPUs.

Without them the twin of each claim takes its way; claims that nothing tests are listed.
"""

import pytest
from recipes import claim_1b3_4x8, claim_175m_b64, claim_memory

from harness import scaling


@pytest.mark.acceptance
@scaling(claim_175m_b64, claim_1b3_4x8, claim_memory)
def test_claims(verdict):
    """Each claim is confirmed or refuted."""
