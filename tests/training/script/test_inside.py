"""The parameters and submodules of a module are read by torch's attributes, not its overrides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from harness.training.script import inside


class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.body.weight

    def parameters(self, _: bool = True) -> Any:
        return [{"params": list(super().parameters())}]

    def modules(self) -> Any:
        raise TypeError("ask torch")


def test_parts_are_read_although_the_module_overrides_its_methods() -> None:
    net = nn.Sequential(Groups(), nn.LazyLinear(3), nn.BatchNorm1d(4, affine=False))
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plain[1].weight = plain[0].weight
    assert [p.shape for p in inside.parameters(net)] == [p.shape for p in plain.parameters()]
    whole = [type(module) for module in inside.modules(plain)]
    assert whole == [type(module) for module in plain.modules()]


@pytest.mark.filterwarnings("ignore")
def test_collectives_of_every_dtype_have_bytes() -> None:
    from harness.training.observe import collectives

    carried = [d for d in vars(torch).values() if isinstance(d, torch.dtype) and d.itemsize]
    for dtype in set(carried):
        name = str(dtype).removeprefix("torch.")
        if name.startswith(("bits", "int", "uint", "quint4", "quint2")) and dtype.itemsize == 1:
            continue  # types of parts of a byte, which no backend sends
        kind = torch.empty(0, dtype=dtype).type().rpartition(".")[2].removesuffix("Tensor")
        entry = {"input_sizes": [[3]], "input_dtypes": [kind]}
        if name != "bits16":
            assert collectives._payload(entry) == 3 * dtype.itemsize, kind


def test_a_remote_module_is_not_asked_for_its_parts() -> None:
    """``RemoteModule`` raises an error if it is asked for parameters and children."""

    class Remote(nn.Linear):
        def named_parameters(self, *_: object, **__: object) -> Any:
            raise ValueError("Method ``named_parameters`` not supported for RemoteModule")

        named_children = children = parameters = named_parameters

    net = nn.Sequential(Remote(2, 3), nn.Linear(3, 1))
    assert [p.shape for p in inside.parameters(net)] == [(3, 2), (3,), (1, 3), (1,)]
    assert len(list(inside.modules(net))) == 3
    del net[0].__dict__["_parameters"], net[0].__dict__["_modules"]  # as in torch's RemoteModule
    assert [p.shape for p in inside.parameters(net)] == [(1, 3), (1,)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_has_the_parts_of_its_original() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    scripted = torch.jit.script(net)
    assert [p.shape for p in inside.parameters(scripted)] == [(3, 2), (3,), (1, 3), (1,)]


def test_parts_have_module_names_and_each_parameter_belongs_to_one() -> None:
    body = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    assert list(inside.by_part([body])) == ["0", "1.0", "1.1"]
    body[1][1].weight = body[1][0].weight  # tied
    parts = inside.by_part([body])
    assert [len(part) for part in parts.values()] == [2, 2, 1]
    assert list(inside.by_part([nn.Linear(2, 3)])) == ["Linear"]
    both = inside.by_part([nn.Linear(2, 3), nn.Bilinear(2, 3, 1)])
    assert list(both) == ["Linear.Linear", "Bilinear.Bilinear"]


@pytest.mark.parametrize(("blocks", "parts"), [(8, 16), (30, 30), (100, 1)])
def test_many_modules_are_merged_into_their_parents(blocks: int, parts: int) -> None:
    """The number of parts is limited, for readers and records."""
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(blocks)))
    by_part = inside.by_part([deep])
    assert len(by_part) == parts
    assert sum(map(len, by_part.values())) == 4 * blocks


class Aware(nn.Module):
    """A module whose output depends on the training mode, as with stochastic depth."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else 2 * x


@pytest.mark.parametrize(
    ("layer", "differs"),
    [
        (nn.Dropout(0.1), True),
        (nn.BatchNorm1d(3), True),
        (Aware(), True),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.Dropout(0.0), False),
        (nn.LSTM(2, 2), False),
        (nn.LayerNorm(3), False),
    ],
)
def test_only_mode_dependent_layers_differ_in_eval_mode(layer: nn.Module, differs: bool) -> None:
    assert inside.differs_in_eval(nn.Sequential(nn.Linear(2, 2), layer)) is differs
