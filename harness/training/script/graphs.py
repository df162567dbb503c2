"""Find the graphs in batches of PyTorch Geometric.

There the nodes of all graphs of a batch are the rows of one tensor
(https://pytorch-geometric.readthedocs.io/en/latest/advanced/batching.html).
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Types of the parts of a batch that cannot hold graphs.
_PLAIN = (Tensor, dict, str, int, float, list, tuple, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """One batch of graphs. The nodes of graph i are the rows ``starts[i]:starts[i + 1]``.

    ``nodes`` is the number of nodes of all graphs together.
    """

    nodes: int
    starts: Tensor

    @property
    def count(self) -> int:
        """Return the number of graphs."""
        return len(self.starts) - 1


def graphs(batch: object) -> Graphs | None:
    """Return the graphs of a batch, or of its first part with graphs, or None."""
    parts: Sequence[Any] = batch if isinstance(batch, list | tuple) else [batch]
    for part in parts[:8]:
        # Nearly all parts have these types. Skip them, because reading attributes takes longer.
        if isinstance(part, _PLAIN):
            continue
        with contextlib.suppress(Exception):  # a user-defined batch may raise any error
            starts, nodes = part.ptr, part.num_nodes
            if isinstance(starts, Tensor) and isinstance(nodes, int) and len(starts) > 1:
                return Graphs(nodes=nodes, starts=starts)
    return None


def nodes(tensors: Iterable[Tensor], of: Graphs) -> Tensor | None:
    """Return the first tensor with one row for each node, or None."""
    rows = (tensor for tensor in tensors if len(tensor) == of.nodes)
    return next((tensor for tensor in rows if not _is_edges(tensor)), None)


def apart(tensors: Iterable[Tensor], of: Graphs) -> list[Sequence[Tensor]]:
    """Return the tensors that identify graphs, split into one part for each graph.

    These tensors hold the nodes and, if present, the edges between them. Edges are needed because
    in many data sets all nodes are equal.
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
    """Return whether a tensor holds pairs of nodes, as ``edge_index`` does."""
    return tensor.dim() == 2 and len(tensor) == 2 and tensor.dtype is torch.int64
