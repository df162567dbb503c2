"""The examples of docs/extending.md pass the correctness check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cases import Catalogue

EXAMPLES = Path(__file__).parents[2] / "examples" / "my_files"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue([EXAMPLES])


@pytest.mark.parametrize(
    "case", ["by_hand/tinynet-small", "ddp/tinynet-small", "compressed:halves/mlp-nano"]
)
def test_an_example_passes_the_correctness_check(launch: Any, case: str) -> None:
    world = launch(case)
    assert world.cause is None and not world.failed
    assert all(len(rank.checks) > 10 for rank in world.ranks)


def test_the_example_of_an_input_passes_the_correctness_check(launch: Any) -> None:
    world = launch("ddp/mlp-nano", data="kept_on_host")
    assert world.cause is None and not world.failed
    assert any(c.name == "input.content" for c in world.ranks[0].checks)
