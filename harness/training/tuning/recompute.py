"""Activation memory: activations are recomputed in backward, or kept on the host until backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from harness.cases import CaseSpec

#: Operators whose outputs selective checkpoints keep, because they take long to recompute.
PRODUCTS = frozenset(
    (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
)


class Again:
    """Counters of how often a block was computed in forward and recomputed in backward."""

    def __init__(self, selective: bool) -> None:
        self.selective = selective
        self.first = self.again = 0

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return two contexts: for the block's forward, and for its recomputation."""
        first, again = _selective() if self.selective else (_nothing(), _nothing())
        return self._counted("first", first), self._counted("again", again)

    @contextmanager
    def _counted(self, name: str, inner: AbstractContextManager[Any]) -> Iterator[None]:
        setattr(self, name, getattr(self, name) + 1)
        with inner:
            yield


def checkpointed(model: nn.Module, case: CaseSpec) -> list[Again]:
    """Checkpoint every ``checkpoint_every``-th block, and return the counters of these blocks.

    A block that has only frozen weights is not checkpointed. If it were the first block, no
    gradient would flow back through it, and it would never be recomputed.
    """
    counts = []
    for name, block in list(model.named_children())[:: case.checkpoint_every]:
        if {parameter.requires_grad for parameter in block.parameters()} == {False}:
            continue
        count = Again(case.selective)
        setattr(model, name, checkpoint_wrapper(block, context_fn=count.contexts))
        counts.append(count)
    return counts


class OnHost(torch.autograd.graph.saved_tensors_hooks):
    """A context that keeps the tensors that backward needs, except weights, in host memory.

    ``moved_bytes`` is the number of bytes that all instances have moved to the host.
    """

    moved_bytes = 0

    def __init__(self) -> None:
        super().__init__(self._pack, self._unpack)

    @staticmethod
    def _pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
        if tensor.is_leaf and tensor.requires_grad:
            return tensor.device, tensor
        OnHost.moved_bytes += tensor.nbytes
        held = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type != "cpu")
        return tensor.device, held.copy_(tensor, non_blocking=True)

    @staticmethod
    def _unpack(kept: tuple[torch.device, Tensor]) -> Tensor:
        device, tensor = kept
        return tensor.to(device, non_blocking=True)


def _policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    """Return the policy that saves the outputs of matrix products and recomputes all others."""
    saved = operator in PRODUCTS
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    first, again = create_selective_checkpoint_contexts(_policy)
    return first, again


@contextmanager
def _nothing() -> Iterator[None]:
    yield
