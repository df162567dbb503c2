"""Along ``pp``: blocks of a model cut into contiguous stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harness.base.stats import evenly
from harness.training.tuning.kernels import compiled_blocks

#: What the size of a stage can be weighed by; else a list of its number of blocks.
SPLITS = ("flops", "layers")


def cuts(flops: Mapping[str, float], stages: int, split: str) -> list[list[str]]:
    """The names of each stage's blocks, of which ``flops`` says what they compute.

    ``flops`` makes the largest stage as small as it can be, ``layers`` counts blocks alike,
    ``3,2,3`` says how many blocks each stage has.
    """
    names = list(flops)
    if len(names) < stages:
        raise ValueError(f"{len(names)} blocks cannot be cut into {stages} stages")
    if split not in SPLITS:
        return _listed(names, stages, split)
    weights = [1.0] * len(names) if split == "layers" else list(flops.values())
    counts = iter(evenly(weights, stages))
    rest = iter(names)
    return [[next(rest) for _ in range(count)] for count in counts]


def _listed(names: Sequence[str], stages: int, split: str) -> list[list[str]]:
    """The blocks of each stage by a list of their numbers, as ``2,3,3``."""
    counts = [int(part) for part in split.split(",") if part.strip().isdigit()]
    if len(counts) != stages or sum(counts) != len(names) or min(counts) < 1:
        raise ValueError(
            f"split {split!r} is neither {' nor '.join(SPLITS)}, nor the number of blocks of each"
            f" of {stages} stages, {len(names)} together"
        )
    rest = iter(names)
    return [[next(rest) for _ in range(count)] for count in counts]


class DepthBlock(NamedTuple):
    """The FLOPs of a block on its inputs, one at least, and its output."""

    flops: float
    output: Tensor


def blocks_of(model: nn.Sequential, x: Tensor) -> dict[str, DepthBlock]:
    """Every block of a model that is given these inputs, by name.

    Inputs are on the meta device. Of one model they are counted once for each shape.
    """
    known = _COUNTED.setdefault(model, {})
    if x.shape not in known:
        known[x.shape] = _counted(model, x)
    return known[x.shape]


_COUNTED: WeakKeyDictionary[nn.Module, dict[torch.Size, dict[str, DepthBlock]]] = (
    WeakKeyDictionary()
)


def flops_of(model: nn.Sequential, x: Tensor) -> dict[str, float]:
    """The FLOPs of each block on these inputs on the meta device, by name."""
    return {name: block.flops for name, block in blocks_of(model, x).items()}


def likeness(block: nn.Module, x: Tensor) -> tuple[object, ...]:
    """Type, weights and inputs that blocks share if they compute alike, where a file says so."""
    weights = tuple((name, tuple(parameter.shape)) for name, parameter in block.named_parameters())
    return type(block), weights, tuple(x.shape), x.dtype


def _counted(model: nn.Sequential, x: Tensor) -> dict[str, DepthBlock]:
    counted: dict[str, DepthBlock] = {}
    known: dict[object, DepthBlock] = {}
    alike = getattr(model, "alike", False)
    for child, wrapped in model.named_children():
        block = getattr(wrapped, "_checkpoint_wrapped_module", wrapped)  # else names do not match
        key = likeness(block, x) if alike else child
        if key not in known:
            known[key] = _computed(block, x)
        counted[child] = known[key]
        x = counted[child].output
    return counted


def _computed(block: nn.Module, x: Tensor) -> DepthBlock:
    meta = {name: parameter.to("meta") for name, parameter in block.named_parameters()}
    meta |= {name: tensor.to("meta") for name, tensor in block.named_buffers()}
    counter = FlopCounterMode(display=False)
    compiled = bool(compiled_blocks(block))  # only then: the stance imports the compiler
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with eager, counter, torch.no_grad():
        output = torch.func.functional_call(block, meta, (x,))
    return DepthBlock(float(counter.get_total_flops()) or 1.0, output)


def stage(model: nn.Sequential, names: Sequence[str]) -> nn.Sequential:
    """The blocks of a stage, under their own names, cut by width as the whole model is."""
    blocks = nn.Sequential(OrderedDict((name, model.get_submodule(name)) for name in names))
    blocks.tensor = getattr(model, "tensor", None)  # type: ignore[assignment]
    return blocks
