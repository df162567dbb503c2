"""Tensors that a forward pass keeps for its backward, counted on tensors without data.

Hooks on saved tensors see what autograd will hold on a device: every storage once, weights not.
Copies of weights that autocast makes do not grow with the batch, so two batches tell them apart.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.cases import CaseSpec, Precision
from harness.training.context import CAST, Loaded, build_model, make_batch, parts
from harness.training.tuning.recompute import PRODUCTS
from harness.training.tuning.tuned import untuned

#: One for all counts: what a model caches in one is used in the next.
FAKE = FakeTensorMode()


@dataclass(frozen=True, kw_only=True)
class SavedTensorBytes:
    """Bytes that a step holds besides weights, gradients and moments.

    ``blocks`` is what each block keeps of a sample, the last one with the loss; ``again`` what the
    largest one needs while it is computed once more, where only what lies between them is kept.
    """

    per_sample: int
    constant: int
    blocks: tuple[int, ...]
    again: int


class _Block(NamedTuple):
    """Bytes that a block keeps, those of its output, and those of its matrix products."""

    num_bytes: int
    output: int
    products: int


@dataclass
class _Count:
    """Bytes kept by the whole model, by each of its blocks, and by the loss."""

    whole: int = 0
    loss: int = 0
    blocks: list[_Block] = field(default_factory=list)

    def deeper(self, more: int) -> _Count:
        """With so many blocks more, each as the one before the last; that one is the head."""
        if not more:
            return self
        *before, head = self.blocks
        grown = [*before, *[before[-1]] * more, head]
        return _Count(self.whole + more * before[-1].num_bytes, self.loss, grown)


def kept(loaded: Loaded, case: CaseSpec, more: int = 0) -> SavedTensorBytes:
    """Counted for one sample and for two; of a checkpointed block only the output is kept (of a
    selective one its matrix products, too), and one block at a time is computed again, or fetched
    from the host. With so many ``more`` blocks as the one before the last.

    To be called in a process that trains nothing: what a model caches stays without data.
    """
    plain = loaded.at_once(replace(untuned(case), checkpoint=False, compressor=None))
    counts = [_count(loaded, plain, samples).deeper(more) for samples in (1, 2)]
    leaves_out = case.checkpoint or case.offload
    held = [[_held(i, block, case) for i, block in enumerate(count.blocks)] for count in counts]
    most = [
        max(count.loss, *(_again(i, block, case) for i, block in enumerate(count.blocks)))
        for count in counts
    ]
    of_one, of_two = (
        sum(stored) + largest if leaves_out else count.whole
        for stored, largest, count in zip(held, most, counts, strict=True)
    )
    first, second = held
    blocks = [max(0, b - a) for a, b in zip(first, second, strict=True)]
    blocks[-1] += max(0, counts[1].loss - counts[0].loss)
    again = max(0, most[1] - most[0]) if leaves_out else 0
    return SavedTensorBytes(
        per_sample=max(0, of_two - of_one),
        constant=max(0, 2 * of_one - of_two),
        blocks=tuple(blocks),
        again=again,
    )


def _recomputed(place: int, case: CaseSpec) -> bool:
    return case.checkpoint and place % case.checkpoint_every == 0


def _held(place: int, block: _Block, case: CaseSpec) -> int:
    """Bytes of a block that the device holds from forward to backward."""
    if case.offload:
        return 0
    if not _recomputed(place, case):
        return block.num_bytes
    return block.output + (block.products if case.selective else 0)


def _again(place: int, block: _Block, case: CaseSpec) -> int:
    """Bytes that a block needs besides, while it is computed again or fetched."""
    spared = block.products if case.selective and _recomputed(place, case) else 0
    return max(0, block.num_bytes - spared)


class _Products(TorchDispatchMode):
    """Sums the bytes of what matrix products give."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            self.num_bytes += result.numel() * result.element_size()
        return result


def _count(loaded: Loaded, case: CaseSpec, samples: int) -> _Count:
    count = _Count()
    by_storage = dict[int, Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        by_storage.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    def held() -> int:
        return sum(
            tensor.untyped_storage().nbytes()
            for key, tensor in by_storage.items()
            if key not in weights
        )

    batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
    sample = (batch.inputs, batch.targets)
    usual = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(FAKE)
        if case.precision is Precision.BF16:
            stack.callback(torch.set_default_dtype, usual)
            torch.set_default_dtype(torch.bfloat16)
        model = build_model(loaded, replace(case, precision=Precision.FP32), case.seed)
        inputs, targets = (
            torch.zeros(samples, *like.shape[1:], dtype=like.dtype) for like in sample
        )
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        if (dtype := CAST.get(case.precision)) is not None:
            stack.enter_context(torch.autocast("cpu", dtype=dtype))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t))
        products = stack.enter_context(_Products())
        x = inputs
        for block in parts(model):
            before = held()
            multiplied = products.num_bytes
            x = block(x)
            output = x.numel() * x.element_size()
            kept_bytes = held() - before
            multiplied = products.num_bytes - multiplied
            count.blocks.append(_Block(kept_bytes, output, multiplied))
        before = held()
        loaded.model.loss(x, targets)
        count.loss = held() - before
        count.whole = held()
    return count
