"""What a data set stores, by which ranks that share one are told from ranks with their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from harness.training.script.loaders import _stored


class Wordless:
    """An object whose text is where it lies."""


class Files(Dataset[Any]):
    """Paths, and whatever a user keeps beside them."""

    def __init__(self, folder: str) -> None:
        self.samples = [(f"{folder}/{i}.png", Wordless()) for i in range(8)]
        self.transform = Wordless()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> torch.Tensor:
        raise AssertionError("no sample is drawn for our sake")


class MadeUp(Files):
    def __init__(self) -> None:
        self.size = 8

    def __len__(self) -> int:
        return self.size


class Slots:
    __slots__ = ("rows",)

    def __len__(self) -> int:
        return 8


class Broken(Files):
    def __len__(self) -> int:
        raise NotImplementedError


def test_the_same_files_are_one_data_set_wherever_they_lie_in_memory() -> None:
    assert _stored(Files("a")) == _stored(Files("a")) != ""
    assert _stored(Files("a")) != _stored(Files("b"))


def test_parts_of_one_are_each_a_rank_s_own() -> None:
    whole = Files("a")
    first, second = Subset(whole, [0, 1, 2, 3]), Subset(whole, [4, 5, 6, 7])
    assert _stored(first) != _stored(second)
    everything = Subset(whole, list(range(8)))
    assert _stored(everything) == _stored(Subset(Files("a"), list(range(8))))


def test_tensors_are_told_by_their_values() -> None:
    rows = torch.arange(32.0).reshape(8, 4)
    assert _stored(TensorDataset(rows)) == _stored(TensorDataset(rows.clone()))
    assert _stored(TensorDataset(rows)) != _stored(TensorDataset(rows + 1))


@pytest.mark.parametrize("kind", [MadeUp, Slots, lambda: Broken("a"), lambda: None, lambda: [1, 2]])
def test_what_stores_nothing_or_cannot_be_asked_is_unknown(kind: Any) -> None:
    assert _stored(kind()) == ""
