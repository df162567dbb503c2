"""Self-test of the measurement: simulated compute whose steps follow a known efficiency."""

import pytest
from recipes import planted, same

from harness import scaling


@pytest.mark.smoke
@scaling(planted("ddp", "2:0.85", largest=2))
def test_planted(verdict):
    """The measured efficiency matches the known one."""


CELLS = [(s, n, e) for s in ("ddp", "pipeline") for n in (2, 4) for e in (0.95, 0.85, 0.7, 0.5)]


@pytest.mark.nightly
@scaling(*(planted(s, f"{n}:{e}", n, step_ms=140.0) for s, n, e in CELLS))
def test_planted_cells(verdict):
    """Known efficiencies from 0.95 to 0.50 are measured for DDP and GPipe on 2 and 4 ranks."""


@pytest.mark.nightly
@scaling(same())
def test_same(verdict):
    """An A/A comparison of two identical arms shows their ratio with its interval."""
