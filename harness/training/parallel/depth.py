"""Along ``pp``: blocks of a model cut into contiguous stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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


def flops_of(model: nn.Sequential, x: Tensor) -> dict[str, float]:
    """What each block computes of these inputs, by name; at least something.

    Inputs are on the meta device. Of one model they are counted once for each shape.
    """
    known = _COUNTED.setdefault(model, {})
    if x.shape not in known:
        known[x.shape] = _counted(model, x)
    return known[x.shape]


_COUNTED: WeakKeyDictionary[nn.Module, dict[torch.Size, dict[str, float]]] = WeakKeyDictionary()


def _counted(model: nn.Sequential, x: Tensor) -> dict[str, float]:
    counted: dict[str, float] = {}
    for child, wrapped in model.named_children():
        block = getattr(wrapped, "_checkpoint_wrapped_module", wrapped)  # else names do not match
        meta = {name: p.to("meta") for name, p in block.named_parameters()}
        meta |= {name: b.to("meta") for name, b in block.named_buffers()}
        counter = FlopCounterMode(display=False)
        compiled = bool(compiled_blocks(block))  # only then: the stance imports the compiler
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with eager, counter, torch.no_grad():
            x = torch.func.functional_call(block, meta, (x,))
        counted[child] = float(counter.get_total_flops()) or 1.0
    return counted


def stage(model: nn.Sequential, names: Sequence[str]) -> nn.Sequential:
    """The blocks of a stage, under their own names, cut by width as the whole model is."""
    blocks = nn.Sequential(OrderedDict((n, model.get_submodule(n)) for n in names))
    blocks.tensor = getattr(model, "tensor", None)  # type: ignore[assignment]
    return blocks
