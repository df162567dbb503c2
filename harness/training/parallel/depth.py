"""Pipeline parallelism along ``pp``: the blocks of a model are divided into contiguous stages."""

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

#: Quantities by which stages can be balanced. Any other ``split`` lists the blocks per stage.
SPLITS = ("flops", "layers")


def cuts(flops: Mapping[str, float], stages: int, split: str) -> list[list[str]]:
    """Divide blocks into stages, and return the names of each stage's blocks.

    ``flops`` maps the name of each block to its FLOPs. ``split`` is "flops" to minimise the FLOPs
    of the largest stage, or "layers" to minimise its number of blocks. Otherwise it lists the
    number of blocks of each stage, such as ``3,2,3``. Raise ValueError if there are fewer blocks
    than stages.
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
    """Return the names of each stage's blocks for a list of block counts such as ``2,3,3``."""
    counts = [int(part) for part in split.split(",") if part.strip().isdigit()]
    if len(counts) != stages or sum(counts) != len(names) or min(counts) < 1:
        raise ValueError(
            f"split is {split!r}; expected {' or '.join(SPLITS)}, or the number of blocks of each"
            f" of {stages} stages, which add up to {len(names)}"
        )
    rest = iter(names)
    return [[next(rest) for _ in range(count)] for count in counts]


class DepthBlock(NamedTuple):
    """The FLOPs of a block (at least 1) and its output, for given inputs."""

    flops: float
    output: Tensor


def blocks_of(model: nn.Sequential, x: Tensor) -> dict[str, DepthBlock]:
    """Return the FLOPs and the output of each block for inputs on the meta device, by name.

    The result is cached for each model and input shape.
    """
    known = _COUNTED.setdefault(model, {})
    if x.shape not in known:
        known[x.shape] = _counted(model, x)
    return known[x.shape]


_COUNTED: WeakKeyDictionary[nn.Module, dict[torch.Size, dict[str, DepthBlock]]] = (
    WeakKeyDictionary()
)


def flops_of(model: nn.Sequential, x: Tensor) -> dict[str, float]:
    """Return the FLOPs of each block for inputs on the meta device, by name."""
    return {name: block.flops for name, block in blocks_of(model, x).items()}


def likeness(block: nn.Module, x: Tensor) -> tuple[object, ...]:
    """Return a key made of a block's type and the shapes of its weights and inputs.

    Blocks with equal keys compute the same. This is true only if the model's file states that its
    blocks are identical.
    """
    weights = tuple((name, tuple(parameter.shape)) for name, parameter in block.named_parameters())
    return type(block), weights, tuple(x.shape), x.dtype


def _counted(model: nn.Sequential, x: Tensor) -> dict[str, DepthBlock]:
    """Count the FLOPs of each block of a model; identical blocks are computed once."""
    counted: dict[str, DepthBlock] = {}
    known: dict[object, DepthBlock] = {}
    alike = getattr(model, "alike", False)
    for child, wrapped in model.named_children():
        # The checkpoint wrapper would change the names of parameters.
        block = getattr(wrapped, "_checkpoint_wrapped_module", wrapped)
        key = likeness(block, x) if alike else child
        if key not in known:
            known[key] = _computed(block, x)
        counted[child] = known[key]
        x = counted[child].output
    return counted


def _computed(block: nn.Module, x: Tensor) -> DepthBlock:
    """Count the FLOPs of one block on the meta device, without compiled code."""
    meta = {name: parameter.to("meta") for name, parameter in block.named_parameters()}
    meta |= {name: tensor.to("meta") for name, tensor in block.named_buffers()}
    counter = FlopCounterMode(display=False)
    compiled = bool(compiled_blocks(block))  # import the compiler only if needed
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with eager, counter, torch.no_grad():
        output = torch.func.functional_call(block, meta, (x,))
    return DepthBlock(float(counter.get_total_flops()) or 1.0, output)


def stage(model: nn.Sequential, names: Sequence[str]) -> nn.Sequential:
    """Return a module of the stage's blocks, with their names and the ``tensor`` of the model."""
    blocks = nn.Sequential(OrderedDict((name, model.get_submodule(name)) for name in names))
    blocks.tensor = getattr(model, "tensor", None)  # type: ignore[assignment]
    return blocks
