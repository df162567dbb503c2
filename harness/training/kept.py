"""What a forward pass keeps for its backward, counted on tensors without data.

Hooks on saved tensors see what autograd will hold on a device: every storage once, weights not.
Copies of weights that autocast makes do not grow with the batch, so two batches tell them apart.
"""

import contextlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.spec import CaseSpec, Precision
from harness.training.context import CAST, Loaded, build_model, make_batch, parts
from harness.training.tuning.tuned import untuned

#: One for all counts: what a model caches in one is used in the next.
_FAKE = FakeTensorMode()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes that a step holds besides weights, gradients and moments.

    ``blocks`` is what each block keeps of a sample, the last one with the loss; ``again`` what the
    largest one needs while it is computed once more, where only what lies between them is kept.
    """

    per_sample: int
    constant: int
    blocks: tuple[int, ...]
    again: int


@dataclass
class _Count:
    """Bytes kept by the whole model, and by the largest block alone.

    ``blocks`` has each block's own and its output's, ``loss`` what the loss keeps.
    """

    whole: int = 0
    largest: int = 0
    loss: int = 0
    blocks: list[tuple[int, int]] = field(default_factory=list)


def kept(loaded: Loaded, case: CaseSpec) -> Kept:
    """Counted for one sample and for two; of a checkpointed block only the output is kept, and one
    block at a time is computed again, or fetched from the host. Selective ones count as kept.

    To be called in a process that trains nothing: what a model caches stays without data.
    """
    plain = loaded.at_once(replace(untuned(case), checkpoint=False, compressor=None))
    counts = [_count(loaded, plain, samples) for samples in (1, 2)]
    again_at = case.checkpoint_every if case.checkpoint and not case.selective else 0
    leaves_out = bool(again_at) or case.offload
    held = [[_held(i, b, again_at, case.offload) for i, b in enumerate(c.blocks)] for c in counts]
    one, two = (
        sum(own) + c.largest if leaves_out else c.whole for own, c in zip(held, counts, strict=True)
    )
    first, second = held
    blocks = [max(0, b - a) for a, b in zip(first, second, strict=True)]
    blocks[-1] += max(0, counts[1].loss - counts[0].loss)
    again = max(0, counts[1].largest - counts[0].largest) if leaves_out else 0
    return Kept(
        per_sample=max(0, two - one), constant=max(0, 2 * one - two), blocks=tuple(blocks),
        again=again,
    )  # fmt: skip


def _held(place: int, block: tuple[int, int], again_at: int, offload: bool) -> int:
    """Bytes of a block's own, or of its output alone, that the device holds until backward."""
    own, output = block
    if offload:
        return 0
    return output if again_at and place % again_at == 0 else own


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
        if (dtype := CAST.get(case.precision)) is not None:
            stack.enter_context(torch.autocast("cpu", dtype=dtype))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t))
        x = inputs
        for block in parts(model):
            before = held()
            x = block(x)
            output = x.numel() * x.element_size()
            count.blocks.append((held() - before, output))
            count.largest = max(count.largest, held() - before)
        before = held()
        loaded.model.loss(x, targets)
        count.loss = held() - before
        count.largest = max(count.largest, count.loss)
        count.whole = held()
    return count
