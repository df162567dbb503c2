"""The examples of docs/extending.md train as one device would: they pass the correctness gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.spec import Catalogue

EXAMPLES = Path(__file__).parents[2] / "examples" / "my_files"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue([EXAMPLES])


@pytest.mark.parametrize(
    "case", ["by_hand/tinynet-small", "ddp/tinynet-small", "compressed:halves/mlp-nano"]
)
def test_an_example_passes_the_gate(launch: Any, case: str) -> None:
    world = launch(case)
    assert world.cause is None and not world.failed
    assert all(len(rank.checks) > 10 for rank in world.ranks)
