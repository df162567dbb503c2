"""What a forward pass keeps for its backward, counted on tensors without data.

Hooks on saved tensors see what autograd will hold on a device: every storage once, weights not.
Copies of weights that autocast makes do not grow with the batch, so two batches tell them apart.
"""

import contextlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.spec import CaseSpec, Precision
from harness.training.context import Loaded, build_model, make_batch

#: One for all counts: what a model caches in one is used in the next.
_FAKE = FakeTensorMode()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes that a step holds besides weights, gradients and moments."""

    per_sample: int
    constant: int


@dataclass
class _Count:
    """Bytes kept by the whole model, its outputs between blocks, and by the largest block alone."""

    whole: int = 0
    between: int = 0
    largest: int = 0


def kept(loaded: Loaded, case: CaseSpec) -> Kept:
    """Counted for one sample and for two; with checkpoints only what lies between blocks is kept,
    and one block at a time is computed again.

    To be called in a process that trains nothing: what a model caches stays without data.
    """
    plain = loaded.at_once(replace(case, checkpoint=False, compressor=None))
    counts = [_count(loaded, plain, samples) for samples in (1, 2)]
    one, two = (c.between + c.largest if case.checkpoint else c.whole for c in counts)
    return Kept(per_sample=max(0, two - one), constant=max(0, 2 * one - two))


def _count(loaded: Loaded, case: CaseSpec, samples: int) -> _Count:
    count, seen = _Count(), dict[int, Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        seen.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    def held() -> int:
        return sum(t.untyped_storage().nbytes() for k, t in seen.items() if k not in weights)

    batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
    one, usual = (batch.inputs, batch.targets), torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_FAKE)
        if case.precision is Precision.BF16:
            stack.callback(torch.set_default_dtype, usual)
            torch.set_default_dtype(torch.bfloat16)
        model = build_model(loaded, replace(case, precision=Precision.FP32), case.seed)
        inputs, targets = (torch.zeros(samples, *like.shape[1:], dtype=like.dtype) for like in one)
        weights = {p.untyped_storage()._cdata for p in model.parameters()}
        if case.precision is Precision.AUTOCAST:
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t))
        x = inputs
        for block in model.children():
            before = held()
            x = block(x)
            count.largest = max(count.largest, held() - before)
            count.between += x.numel() * x.element_size()
        before = held()
        loaded.model.loss(x, targets)
        count.largest = max(count.largest, held() - before)
        count.whole = held()
    return count
