"""The part of a batch that a rank gets if sequences are split."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness import Batch
from harness.cases import Catalogue, Device, Mesh, Site
from harness.training.context import placed

CASE = Catalogue().normalise(
    Site(device=Device.CPU, backend="gloo", nodes=(2,)).case("context_parallel/decoder-nano")
)


def handed(parts: list[list[int]], rank: int) -> Tensor:
    """Return the tokens of a rank if a strategy splits eight tokens into these parts."""
    cut = SimpleNamespace(
        positions=lambda knobs, length, places: [torch.tensor(part) for part in parts],
        __file__="mine.py",
    )
    loaded: Any = SimpleNamespace(strategy=cut, knobs=lambda case: {})
    ctx: Any = SimpleNamespace(
        case=CASE, device=torch.device("cpu"), mesh=Mesh.parse("cp:2"), rank=rank
    )
    tokens = 10 * torch.arange(8)[None]
    batch = Batch(ids=torch.tensor([0]), inputs=tokens, targets=tokens, of=0)
    return placed(loaded, ctx, batch).inputs[0]


def test_each_rank_has_its_part_of_the_sequence() -> None:
    parts = [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert handed(parts, 0).tolist() == [0, 10, 60, 70]
    assert handed(parts, 1).tolist() == [20, 30, 40, 50]


@pytest.mark.parametrize(
    "parts", [[[0, 1, 2, 3], [3, 4, 5, 6]], [[0, 1], [2, 3]], [[0, 1, 2, 3], [4, 5, 6, 6]]]
)
def test_tokens_that_are_left_out_or_trained_on_twice_are_refused(parts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="mine.py: positions\\(8, 2\\) do not contain each"):
        handed(parts, 0)
