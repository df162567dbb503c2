"""Batches of graphs as PyTorch Geometric makes them: the nodes of all graphs are rows of a tensor.

https://pytorch-geometric.readthedocs.io/en/latest/advanced/batching.html
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Parts of a batch that are no graphs.
_PLAIN = (Tensor, dict, str, int, float, list, tuple, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """One batch: the nodes of graph i are the rows from ``starts[i]`` to before ``starts[i+1]``."""

    nodes: int
    starts: Tensor

    @property
    def count(self) -> int:
        """The number of graphs."""
        return len(self.starts) - 1


def graphs(batch: object) -> Graphs | None:
    """The graphs of a batch, or of the first part of one that has any; None where none is seen."""
    parts: Sequence[Any] = batch if isinstance(batch, list | tuple) else [batch]
    for part in parts[:8]:
        if isinstance(part, _PLAIN):  # nearly all are: they are not asked, which takes longer
            continue
        with contextlib.suppress(Exception):  # whatever a user's own kind of batch raises
            starts, nodes = part.ptr, part.num_nodes
            if isinstance(starts, Tensor) and isinstance(nodes, int) and len(starts) > 1:
                return Graphs(nodes=nodes, starts=starts)
    return None


def nodes(tensors: Iterable[Tensor], of: Graphs) -> Tensor | None:
    """The first tensor that has a row for each node."""
    rows = (tensor for tensor in tensors if len(tensor) == of.nodes)
    return next((tensor for tensor in rows if not _is_edges(tensor)), None)


def apart(tensors: Iterable[Tensor], of: Graphs) -> list[Sequence[Tensor]]:
    """Parts that tell graphs apart, a tensor for each: nodes, and the edges between these, where
    the tensors hold them. Nodes of many data sets are all alike.
    """
    kept = list(tensors)
    rows = nodes(kept, of)
    assert rows is not None
    starts = of.starts.to(rows.device)
    parts = [rows.split(starts.diff().tolist())]
    edges = next(filter(_is_edges, kept), None)
    if edges is not None and int(edges.max()) < of.nodes:
        number = torch.bucketize(edges[0].contiguous(), starts[1:], right=True)
        local = (edges - starts[number]).t()
        order = number.argsort(stable=True)
        sizes = number.bincount(minlength=of.count)
        parts.append(local[order].split(sizes.tolist()))
    return parts


def _is_edges(tensor: Tensor) -> bool:
    """Whether it holds pairs of nodes, as ``edge_index`` does."""
    return tensor.dim() == 2 and len(tensor) == 2 and tensor.dtype is torch.int64
