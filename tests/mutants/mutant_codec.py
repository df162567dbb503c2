"""Compressors with one injected bug each, as found in practice; ``bug="none"`` is correct."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training import transports
from harness.training.compressors import onebit, qsgd, randomk, topk
from harness.training.context import RankContext
from harness.training.transports import Hook, Knobs, Promise, all_gather, done

ERROR_BOUND = 32.0
KNOBS = dict(bug="none", rho=0.1, block=1024, feedback=True)
CLAIM = "contracts"

#: Bug -> the compressor that has it.
OF = {
    "none": "topk", "sum_for_mean": "topk", "wide_indices": "topk", "owes_all": "topk",
    "owes_nothing": "topk", "ranks_apart": "topk", "signs_as_bytes": "onebit",
    "bits_not_negated": "onebit", "one_error_only": "onebit", "with_replacement": "randomk",
    "global_generator": "randomk", "feedback_without_contraction": "qsgd",
}  # fmt: skip


class SignsAsBytes(onebit.Codec):
    """A byte a sign, sold as a bit."""

    def __init__(self, knobs: Knobs, source: torch.Generator) -> None:
        super().__init__(knobs, source)
        self.promised = super().bytes

    def encode(self, x: Tensor) -> Tensor:
        scale = x.view(x.shape[0], -1, self.unit).abs().mean(2)
        return transports.with_scales((x >= 0).to(torch.uint8), scale)

    def decode(self, message: Tensor, m: int) -> Tensor:
        signs, scale = transports.scales_of(message, m // self.unit)
        blocks = (signs.float() * 2 - 1).view(len(signs), -1, self.unit)
        return (blocks * scale[..., None]).flatten(1)


class BitsNotNegated(onebit.Codec):
    """``~mask`` of bytes is 255 less them, where the other signs were meant."""

    def decode(self, message: Tensor, m: int) -> Tensor:
        signs, scale = transports.scales_of(message, m // self.unit)
        positive = transports.unpacked(signs, transports.lookup(1, (0.0, 1.0))).to(torch.uint8)
        blocks = (positive.float() - (~positive).float()).view(len(signs), -1, self.unit)
        return (blocks * scale[..., None]).flatten(1)


class OneErrorOnly(transports.TwoPhase):
    """The error of the sums is forgotten."""

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.of_sums.clear()
        return super().__call__(bucket)


class Replaced(randomk.Shared):
    """Places are drawn more than once, and what is there counts once only."""

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        kept = randomk.places
        randomk.places = lambda step, n, k, device: kept(step, n, -(-k // 2), device).repeat(2)[:k]
        try:
            return super().__call__(bucket)
        finally:
            randomk.places = kept


class Global(randomk.Shared):
    """Seeds torch's global generator, of which dropout draws."""

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        torch.manual_seed(self.step)
        return super().__call__(bucket)


class WrongTopK(transports.Sparse):
    """Top-k, with the bug."""

    bug = "none"

    def sent(self, parameter: Tensor, wanted: Tensor, index: Tensor) -> None:
        super().sent(parameter, wanted, index)
        if self.feedback is not None and self.bug == "owes_all":
            self.feedback.owe(parameter, wanted)
        if self.feedback is not None and self.bug == "owes_nothing":
            self.feedback.owe(parameter, torch.zeros_like(wanted))

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        out: Tensor = super().__call__(bucket).wait()
        if self.bug == "sum_for_mean":
            out = bucket.buffer().mul_(self.world)
        if self.bug == "ranks_apart":  # as if atomics added in a different order on each rank
            out = bucket.buffer().mul_(1 + dist.get_rank() * 1e-6)
        if self.bug == "wide_indices":  # four more bytes per index
            index = torch.zeros(
                sum(transports.kept(p.numel(), self.rho) for p in bucket.parameters())
            )
            all_gather(index, self.world)
        return done(out)


def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
    of = OF[knobs["bug"]]
    if of == "topk":
        return topk.promise(shapes, world, knobs)
    if of == "onebit":
        return onebit.promise(shapes, world, knobs)
    return (randomk if of == "randomk" else qsgd).promise(shapes, world, knobs)


def build(ctx: RankContext, knobs: Knobs) -> Hook:
    bug, source = str(knobs["bug"]), transports.generator(ctx)
    if bug in ("signs_as_bytes", "bits_not_negated"):
        kind = SignsAsBytes if bug == "signs_as_bytes" else BitsNotNegated
        return transports.TwoPhase(ctx, kind(knobs, source), True, transports.mean)
    if bug == "one_error_only":
        return OneErrorOnly(ctx, onebit.Codec(knobs, source), True, transports.mean)
    if bug == "with_replacement":
        return Replaced(ctx, {**knobs, "feedback": False})
    if bug == "global_generator":
        return Global(ctx, knobs)
    if bug == "feedback_without_contraction":
        return transports.Gathered(ctx, qsgd.Codec(knobs, source), True, lambda x: x)
    hook = WrongTopK(ctx, float(knobs["rho"]), topk.select, True)
    hook.bug = bug
    return hook
