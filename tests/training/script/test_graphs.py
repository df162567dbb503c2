"""Graphs of a batch are counted and distinguished, independently of the rest of the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from harness.training.script.graphs import graphs
from harness.training.script.samples import Rows, arrived, inputs

Graph = tuple[int, list[tuple[int, int]]]


@st.composite
def graph(draw: st.DrawFn) -> Graph:
    """Draw a number of nodes, and edges between them."""
    num_nodes = draw(st.integers(1, 5))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), min_size=1, max_size=6))


def batch_of(some: list[Graph]) -> Any:
    """Return a batch like PyTorch Geometric's; nodes are identical, as in many data sets."""
    sizes = torch.tensor([0, *(num_nodes for num_nodes, _ in some)])
    starts = sizes.cumsum(0)
    edges = [
        torch.tensor(pairs).t() + start
        for (_, pairs), start in zip(some, starts.tolist(), strict=False)
    ]
    return SimpleNamespace(
        edge_index=torch.cat(edges, dim=1),
        x=torch.ones(int(sizes.sum()), 3),
        ptr=starts,
        num_nodes=int(sizes.sum()),
    )


def hashes(batch: Any, *, as_tensors: bool = False) -> np.ndarray:
    """Return the sorted hashes of the graphs, as the observer of a training run computes them."""
    args = (batch.x, batch.edge_index) if as_tensors else (batch,)
    known = graphs(batch)
    assert known is not None
    what = arrived(args, {}, sizes={known.count}, batches=[known] if as_tensors else [])
    assert what is not None and what.count == known.count and not what.unclear
    rows = Rows()
    rows.note(0, inputs(args, {}, what))
    return rows.of(0, 1)


@given(some=st.lists(graph(), min_size=2, max_size=6))
def test_a_graph_is_the_same_in_every_batch(some: list[Graph]) -> None:
    together = hashes(batch_of(some))
    # In the reversed batch, graphs have another order, and their nodes other numbers.
    assert (hashes(batch_of(some[::-1])) == together).all()
    assert (hashes(batch_of(some), as_tensors=True) == together).all()


@given(num_nodes=st.integers(2, 5), some=st.sets(st.permutations(range(6)).map(tuple), min_size=2))
def test_graphs_that_differ_only_in_edges_are_distinguished(
    num_nodes: int, some: set[tuple[int, ...]]
) -> None:
    ring = [(i % num_nodes, (i + 1) % num_nodes) for i in range(6)]
    lists = {tuple(ring[i] for i in order) for order in some}
    seen = hashes(batch_of([(num_nodes, list(pairs)) for pairs in lists]))
    assert len(np.unique(seen)) == len(lists)


def test_batches_of_pytorch_geometric() -> None:
    data = pytest.importorskip("torch_geometric.data", reason="needs torch-geometric")
    loader = pytest.importorskip("torch_geometric.loader", reason="needs torch-geometric")
    some = [
        data.Data(x=torch.ones(n, 3), edge_index=torch.randint(n, (2, 9)), y=torch.ones(1))
        for n in range(2, 18)
    ]
    batch = next(iter(loader.DataLoader(some, batch_size=16)))
    again = next(iter(loader.DataLoader(some[::-1], batch_size=16)))
    seen = hashes(batch)
    assert len(np.unique(seen)) == 16
    assert (seen == hashes(again)).all() and (seen == hashes(batch, as_tensors=True)).all()


@pytest.mark.parametrize("batch", [torch.ones(2), {"x": torch.ones(2)}, [], ("a", 3), None])
def test_other_batches_have_no_graphs(batch: object) -> None:
    assert graphs(batch) is None
