"""Samples in tensors of every kind are counted and distinguished."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.utils.rnn import pack_sequence

from harness.training.observe.intake import digest
from harness.training.observe.tensor_values import pieces
from harness.training.script.observed import Observed
from harness.training.script.samples import Rows, arrived, inputs

ROWS = 6


class Counting(Observed):
    """An observer of every step."""

    def mark(self) -> None: ...


def lone_mesh() -> dist.DeviceMesh:
    """Return a mesh of this process alone."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def nested(x: Tensor, layout: torch.layout) -> Tensor:
    """Return a nested tensor whose row i repeats the first element of the dense row i + 1 times."""
    rows = [x[i, :1].repeat(i + 1) for i in range(len(x))]
    return torch.nested.nested_tensor(rows, layout=layout)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": lambda x: x.to_sparse(),
    "sparse, uncoalesced": lambda x: torch.sparse_coo_tensor(
        x.to_sparse().indices().repeat(1, 2), x.to_sparse().values().repeat(2) / 2, x.shape
    ),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "complex": lambda x: x.to(torch.complex64),
    "complex, of doubles": lambda x: x.to(torch.complex128),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negative view": lambda x: torch.complex(x, x).conj().imag,
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "16 bits without sign": lambda x: (100 * x.abs()).to(torch.uint16),
    "booleans": lambda x: torch.stack([x.view(torch.int32) & (1 << i) != 0 for i in range(32)], 1),
    "nested": lambda x: nested(x, torch.strided),
    "jagged": lambda x: nested(x, torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.01, 0, torch.qint32),
    "onednn's": lambda x: x.to_mkldnn(),
    "sharded": lambda x: distribute_tensor(x, lone_mesh(), [Shard(0)]),
    "replicated": lambda x: distribute_tensor(x, lone_mesh(), [Replicate()]),
    "expanded": lambda x: x[:, :1].expand(len(x), 4),
    "transposed": lambda x: x.t().contiguous().t(),
}


def hashes(x: Tensor) -> list[int]:
    """Return the hashes of the samples in a call with ``x``."""
    how = arrived((x,), {}, ())
    assert how is not None and how.count == ROWS and not how.unclear
    noted = Rows()
    noted.count(0, how)
    noted.note(0, inputs((x,), {}, how))
    return [int(value) for value in noted.of(0, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_any_kind_are_counted_and_distinguished(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested and quantized tensors are prototypes
        torch.manual_seed(0)
        dense = torch.randn(ROWS, 4)
        made = KINDS[kind]
        assert len(set(hashes(made(dense)))) == ROWS
        assert hashes(made(dense.clone())) == hashes(made(dense))
        doubled = dense.clone()
        doubled[1] = doubled[0]
        few = len(set(hashes(made(doubled))))
        assert few == (ROWS if kind in ("nested", "jagged") else ROWS - 1)  # lengths differ
        other = dense.clone()
        other[2, 0] += 1.0
        assert len(set(hashes(made(other))) & set(hashes(made(dense)))) == ROWS - 1


def test_actions_do_not_distinguish_samples_but_later_arguments_do() -> None:
    """rl_games calls models with {"is_train": True, "prev_actions": .., "obs": ..}."""
    call = {"is_train": True, "prev_actions": torch.arange(ROWS) % 2, "obs": torch.randn(ROWS, 4)}
    how = arrived((call,), {}, ())
    assert how is not None and how.count == ROWS
    noted = Rows()
    noted.note(0, inputs((call,), {}, how))
    assert len(set(noted.of(0, 1).tolist())) == ROWS


def test_lengths_show_which_dimension_is_time() -> None:
    """XLM calls models with x of shape (time, samples), lengths, and languages of x's shape."""
    x, lengths = torch.zeros(32, ROWS, dtype=torch.int64), torch.full((ROWS,), 32)
    how = arrived(("fwd",), {"x": x, "lengths": lengths, "langs": x, "causal": False}, ())
    assert how is not None and how.late and how.count == ROWS
    rows_first = arrived((x.t(), lengths), {}, ())
    assert rows_first is not None and not rows_first.late and rows_first.count == ROWS


def test_inputs_with_gradients_are_samples_if_no_loader_has_any() -> None:
    places = torch.randn(ROWS, 1, requires_grad=True)
    how = arrived((places,), {}, ())
    assert how is not None and how.count == ROWS
    assert arrived((places,), {}, {ROWS}) is None, "an attack on a batch"
    assert arrived((places * 2,), {}, ()) is None, "made by another"
    assert arrived((nn.Parameter(places),), {}, ()) is None, "trained itself"


def test_pairs_of_small_numbers_are_distinguished() -> None:
    """Recommenders call models with users and items: here every pair of 64 and 64."""
    pairs = torch.cartesian_prod(torch.arange(64), torch.arange(64))
    call = (pairs[:, 0].clone(), pairs[:, 1].clone())
    how = arrived(call, {}, ())
    assert how is not None
    noted = Rows()
    noted.note(0, inputs(call, {}, how))
    assert len(set(noted.of(0, 1).tolist())) == len(pairs)


@pytest.mark.parametrize("kind", [*KINDS, "packed", "list of sparse"])
def test_training_with_any_kind_of_tensor_is_not_disturbed(kind: str) -> None:
    """It gives the same parameters as without hooks, and all losses are recorded."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, _: object) -> Tensor:
            out: Tensor = self.linear(torch.ones(8, 4))
            return out.square().mean()

    def trained(*, watched: bool) -> tuple[str, int]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observed = Counting()
        if watched:
            observed.hooks.install()
        try:
            for _ in range(3):
                optimizer.zero_grad()
                model(batch).backward()
                optimizer.step()
        finally:
            observed.hooks.remove()
        return digest(iter(model.parameters())), int(np.isfinite(observed.losses(0, 3)).sum())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dense = torch.randn(ROWS, 4)
        batch: object
        if kind == "packed":
            batch = pack_sequence([dense, dense[:2]])
        elif kind == "list of sparse":
            batch = [dense.to_sparse(), dense.to_sparse()]
        else:
            batch = KINDS[kind](dense)
        alone, _ = trained(watched=False)
        assert trained(watched=True) == (alone, 3)


def test_a_sharded_loss_is_read() -> None:
    """A loss may be a distributed tensor, as with a parallel cross entropy."""
    mesh = lone_mesh()
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    observed = Counting()
    observed.hooks.install()
    try:
        for _ in range(2):
            loss = DTensor.from_local(weight.sum(), mesh, [Replicate()])
            loss.backward()
            optimizer.step()
    finally:
        observed.hooks.remove()
    assert observed.losses(0, 1).tolist() == [3.0]


def test_parameters_of_any_kind_have_a_digest() -> None:
    """The digest depends on every part; that of a sharded parameter is of the local part."""
    dense = torch.arange(12.0).reshape(3, 4)
    assert digest(iter([distribute_tensor(dense, lone_mesh(), [Shard(0)])])) == digest(
        iter([dense])
    )
    sparse = dense.to_sparse()
    assert digest(iter([sparse])) != digest(iter([(2 * dense).to_sparse()]))
    jagged = torch.nested.nested_tensor([dense[0], dense[1, :2]], layout=torch.jagged)
    assert {torch.float32, torch.int64} <= {piece.dtype for piece in pieces(jagged)}
    assert digest(iter([dense.to(torch.complex128)])) != digest(iter([dense.to(torch.complex64)]))
