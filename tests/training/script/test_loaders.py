"""What loaders reveal about a training run: which of them train, and what their data sets store."""

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
    """An object whose repr contains its address."""


class Files(Dataset[Any]):
    """A data set of paths, with arbitrary other objects."""

    def __init__(self, folder: str) -> None:
        self.samples = [(f"{folder}/{i}.png", Wordless()) for i in range(8)]
        self.transform = Wordless()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> torch.Tensor:
        raise AssertionError("observing draws no samples")


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


def test_data_sets_of_the_same_files_are_identical() -> None:
    assert _stored(Files("a")) == _stored(Files("a")) != ""
    assert _stored(Files("a")) != _stored(Files("b"))


def test_different_subsets_are_different_data_sets() -> None:
    whole = Files("a")
    first, second = Subset(whole, [0, 1, 2, 3]), Subset(whole, [4, 5, 6, 7])
    assert _stored(first) != _stored(second)
    everything = Subset(whole, list(range(8)))
    assert _stored(everything) == _stored(Subset(Files("a"), list(range(8))))


def test_tensors_are_distinguished_by_their_values() -> None:
    rows = torch.arange(32.0).reshape(8, 4)
    assert _stored(TensorDataset(rows)) == _stored(TensorDataset(rows.clone()))
    assert _stored(TensorDataset(rows)) != _stored(TensorDataset(rows + 1))


@pytest.mark.parametrize("kind", [MadeUp, Slots, lambda: Broken("a"), lambda: None, lambda: [1, 2]])
def test_data_sets_without_stored_samples_are_unknown(kind: Any) -> None:
    assert _stored(kind()) == ""


class Following(Observed):
    """An observer of every step."""

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
def test_evaluation_batches_do_not_count_as_training(
    observed: Following, *, first: bool, most: int
) -> None:
    """Evaluation samples, epochs and batch sizes are ignored, before and after the step."""
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


def test_an_evaluation_before_the_first_step_does_not_count_as_training(
    observed: Following,
) -> None:
    """The loader that trains afterwards was created before the observer."""
    net = nn.Linear(8, 8)
    evaluate(net, loader(3, 1))
    assert observed.hooks.loaders.sizes == [] and observed.hooks.loaders.whole == 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        step(net, torch.randn(4, 8), optimizer)
    assert observed.hooks.loaders.sizes == []


def test_a_loader_created_for_each_epoch_is_a_new_one(observed: Following) -> None:
    """It may have the address of a deleted one."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(8):
        for (x,) in loader(32, 16):
            step(net, x, optimizer)
        evaluate(net, loader(48, 2))
    assert {observed.drawn[sentence] for sentence in range(1, 15)} == {16}
    assert set(observed.hooks.loaders.sizes) == {16} and observed.hooks.loaders.whole == 32


def test_a_batch_that_a_teacher_sees_first_counts_as_training(observed: Following) -> None:
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


def test_a_pseudo_labelled_batch_counts_together_with_the_labelled_one(observed: Following) -> None:
    """FixMatch does this; a batch of the validation loader is also unfinished."""
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


def test_repeated_epochs_are_reported(observed: Following) -> None:
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = loader(64, 16, shuffles=True)
    for _ in range(2):
        for (x,) in batches:
            step(net, x, optimizer)
    assert observed.hooks.loaders.repeated


def test_a_pass_for_statistics_is_no_repeated_epoch(observed: Following) -> None:
    """MACE does this over its neighbours, in the same order as its first training epoch."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = loader(64, 16, shuffles=True)
    for epoch in (None, 0, 1):
        for (x,) in batches:
            if epoch is not None:
                step(net, x, optimizer)
        batches.sampler.set_epoch((epoch or 0) + (epoch is not None))  # type: ignore[attr-defined]
    assert not observed.hooks.loaders.repeated


def test_a_seed_set_after_the_model_is_ignored(observed: Following) -> None:
    nn.Linear(8, 8)
    torch.manual_seed(3)
    assert observed.hooks.seed == ""


def test_a_seed_set_before_the_model_is_recorded(observed: Following) -> None:
    torch.manual_seed(3)
    nn.Linear(8, 8)
    assert observed.hooks.seed == "3"


def test_trained_parameters_outside_of_modules_are_known(observed: Following) -> None:
    """Copies that an optimizer keeps, such as master weights, are not among them."""
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
