"""docs/strategies.md matches the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cases import Catalogue
from tests.contract.test_mutants import CAUGHT_BY, FAMILIES, SIGNS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strategies.md").read_text()


@pytest.mark.full
def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "strategies", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_every_strategy_model_product_and_mutant_is_on_the_page() -> None:
    known = Catalogue().entries
    for entry in known["strategies"].values():
        assert f"| `{entry.name}` | " in PAGE
        assert all(f"`mesh={mesh}`" in PAGE for mesh in entry.supports.products)
    assert f"| strategy | {' | '.join(known['models'])} |" in PAGE
    bugs = [*CAUGHT_BY, *SIGNS, *(bug for _, of_family in FAMILIES.values() for bug in of_family)]
    assert [b for b in bugs if f"| {b.replace('_', ' ')} | " not in PAGE] == []
