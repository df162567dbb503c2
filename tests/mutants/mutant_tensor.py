"""Tensor parallel with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.training.context import Knobs, RankContext
from harness.training.parallel import norms, width
from harness.training.strategies import tensor_parallel
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("tp", "dp"), replicas=True,
    needs=("TENSOR",),
)  # fmt: skip
KNOBS = dict(bug="none", sequence=False, loss=False)
expect = tensor_parallel.expect


class Thrice(torch.autograd.Function):
    """Sends what three layers would that each reduce the gradient of their input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        for _ in range(2):
            dist.all_reduce(torch.zeros_like(gradients[0]))
        return gradients[0]


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    bug, style = knobs["bug"], width._style
    if bug == "norms_not_reduced":  # each rank keeps the gradient of its part of the sequence
        width._style = lambda how, sequence, loss: (  # type: ignore[assignment]
            None if how is width.Cut.NORM else style(how, sequence, loss)
        )
        known = width.cuts
        width.cuts = lambda m: {n: h for n, h in known(m).items() if h is not width.Cut.NORM}
    try:
        trainer = tensor_parallel.build(model, ctx, knobs)
    finally:
        if bug == "norms_not_reduced":
            width._style, width.cuts = style, known
    if bug == "norm_of_own_part":
        norms._holders = lambda parameter: ()
    for name, layer in model.named_modules():
        if bug == "qkv_apart" and name.endswith("qkv"):
            layer.register_forward_pre_hook(lambda _, x: (Thrice.apply(x[0]), *x[1:]), prepend=True)
        if bug == "part_not_added" and name == "block1.out":
            layer.register_forward_pre_hook(lambda _, x: (x[0] * (ctx.rank == 0), *x[1:]))
    return trainer
