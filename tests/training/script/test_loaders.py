"""What loaders tell of a training: which of them train, and what their data sets store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from harness.training.script.loaders import _stored
from harness.training.script.observed import Observed


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


class Following(Observed):
    """Looks at every step."""

    def mark(self) -> None: ...


@pytest.fixture
def observed() -> Iterator[Following]:
    observed = Following()
    observed.hooks.install()
    yield observed
    observed.hooks.remove()


def loader(rows: int, batch: int, *, shuffles: bool = False) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(rows, 8))
    sampler = DistributedSampler(data, num_replicas=2, rank=0) if shuffles else None
    return DataLoader(data, batch_size=batch, sampler=sampler)


def step(net: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


def evaluate(net: nn.Module, batches: DataLoader[Any], most: int = 100) -> None:
    net.eval()
    with torch.no_grad():
        for number, (x,) in enumerate(batches):
            if number == most:
                break
            net(x)
    net.train()


@pytest.mark.parametrize("most", [1, 100], ids=["breaks off", "to its end"])
@pytest.mark.parametrize("first", [False, True], ids=["after the step", "before it"])
def test_what_evaluations_draw_is_not_of_the_training(
    observed: Following, *, first: bool, most: int
) -> None:
    """Its samples, its sampler's epochs and its batches' sizes, wherever it stands in the loop."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training, rest = loader(64, 16), loader(48, 2, shuffles=True)
    for (x,) in training:
        if first:
            evaluate(net, rest, most)
        step(net, x, optimizer)
        if not first:
            evaluate(net, rest, most)
    assert [observed.drawn[sentence] for sentence in (1, 2)] == [16, 16]
    assert observed.hooks.loaders.sizes == [16]
    assert not observed.hooks.loaders.repeated and not observed.hooks.loaders.sampler
    assert observed.hooks.loaders.whole == 64


def test_an_evaluation_before_the_first_step_is_not_of_the_training(observed: Following) -> None:
    """Nor is one that a loader follows which nobody has seen: it was there before us."""
    net = nn.Linear(8, 8)
    evaluate(net, loader(3, 1))
    assert observed.hooks.loaders.sizes == [] and observed.hooks.loaders.whole == 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        step(net, torch.randn(4, 8), optimizer)
    assert observed.hooks.loaders.sizes == []


def test_a_loader_made_anew_for_each_pass_is_another(observed: Following) -> None:
    """It may lie where one was that is gone."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(8):
        for (x,) in loader(32, 16):
            step(net, x, optimizer)
        evaluate(net, loader(48, 2))
    assert {observed.drawn[sentence] for sentence in range(1, 15)} == {16}
    assert set(observed.hooks.loaders.sizes) == {16} and observed.hooks.loaders.whole == 32


def test_a_batch_that_a_teacher_sees_first_is_one_of_the_training(observed: Following) -> None:
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in loader(64, 16):
        for _ in range(2):
            net.eval()
            with torch.no_grad():
                net(x)
        net.train()
        step(net, x, optimizer)
    assert observed.drawn[1] == 16 and observed.hooks.loaders.sizes == [16]


def test_loaders_that_train_together_are_added_up(observed: Following) -> None:
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (labelled,), (more,) in zip(loader(64, 16), loader(32, 8), strict=True):
        step(net, torch.cat([labelled, more]), optimizer)
    assert observed.drawn[1] == 24


def test_a_batch_that_is_labelled_first_trains_together_with_another(observed: Following) -> None:
    """As in FixMatch; a validation's last batch is out meanwhile, too."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    evaluate(net, loader(40, 10), 1)
    for (labelled,), (more,) in zip(loader(64, 16), loader(128, 32), strict=True):
        net.eval()
        with torch.no_grad():
            net(more)
        net.train()
        step(net, torch.cat([labelled, more]), optimizer)
    assert observed.drawn[1] == 48 and sorted(observed.hooks.loaders.sizes) == [16, 32]


def test_epochs_that_a_training_repeats_are_told(observed: Following) -> None:
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = loader(64, 16, shuffles=True)
    for _ in range(2):
        for (x,) in batches:
            step(net, x, optimizer)
    assert observed.hooks.loaders.repeated


def test_a_pass_for_statistics_is_none_of_the_training_s(observed: Following) -> None:
    """As MACE's over its neighbours: its training's first pass has the same order."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = loader(64, 16, shuffles=True)
    for epoch in (None, 0, 1):
        for (x,) in batches:
            if epoch is not None:
                step(net, x, optimizer)
        batches.sampler.set_epoch((epoch or 0) + (epoch is not None))  # type: ignore[attr-defined]
    assert not observed.hooks.loaders.repeated


def test_a_seed_that_data_set_is_none_of_the_training(observed: Following) -> None:
    nn.Linear(8, 8)
    torch.manual_seed(3)
    assert observed.hooks.seed == ""


def test_a_seed_before_the_model_is_one(observed: Following) -> None:
    torch.manual_seed(3)
    nn.Linear(8, 8)
    assert observed.hooks.seed == "3"


def test_parameters_that_train_beside_all_modules_are_known(observed: Following) -> None:
    """What an optimizer keeps for itself, a part in another precision say, is none of them."""
    net = nn.Linear(8, 8)
    scale = nn.Parameter(torch.ones(()))
    master = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([*net.parameters(), scale, master], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (net(torch.randn(4, 8)).square().mean() * scale).backward()
        master.grad = torch.ones(8)
        optimizer.step()
    assert list(observed.loose) == [id(scale)]
