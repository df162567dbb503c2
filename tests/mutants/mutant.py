"""Hand-written data parallel with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training import data
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(bug="none")

_permutation, _shard_of = data.permutation, data.shard_of


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """As DDP: one all-reduce of every gradient."""
    return replace(
        ddp.expect(case, model, batching, facts, ddp.KNOBS), module="Sequential", placements=()
    )


class Context:
    """A context whose autocast does nothing."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> object:
        return getattr(self._ctx, name)

    def forward(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()


class Manual(LocalTrainer):
    """zero_grad, backward, all-reduce, step: with the bug."""

    def __init__(self, module: nn.Module, ctx: RankContext, bug: str) -> None:
        super().__init__(module, Context(ctx) if bug == "autocast_nothing" else ctx)  # type: ignore[arg-type]
        self.bug, self.count = bug, 0

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """All of them, or none to compare with."""
        return iter(()) if self.bug == "nothing_to_compare" else super().gradients()

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All of them, or all but the last."""
        listed = list(super().parameters())
        return iter(listed[:-1] if self.bug == "one_left_out" else listed)

    def reduce(self) -> None:
        """Average every gradient over ranks, or not quite."""
        world = self.ctx.world_size
        for i, (_, p) in enumerate(self.named()):
            assert p.grad is not None
            if self.bug == "no_all_reduce" or (self.bug == "one_tensor" and i == 1):
                continue
            dist.all_reduce(p.grad)
            if self.bug != "sum_for_mean":
                p.grad /= world
            if self.bug == "reduced_twice":
                dist.all_reduce(p.grad)
                p.grad /= world
            if self.bug == "times_1_01":
                p.grad *= 1.01

    def step(self, batch: Batch) -> Tensor | None:
        """One optimizer step."""
        self.count += 1
        if self.bug == "dropped_batch" and self.count % 3 == 0:
            return torch.zeros(())
        self.optimizer.zero_grad(set_to_none=True)
        micro = self.ctx.batching.largest
        parts = list(zip(batch.inputs.split(micro), batch.targets.split(micro), strict=True))
        total = torch.zeros(())
        for x, y in parts:
            with self.ctx.forward():
                loss = self.ctx.loss(self.module(x), y)
            if self.bug != "accumulation_undivided":
                loss = loss / len(parts)
            if self.bug == "skip_second_backward" and self.count % 2 == 0:
                loss = loss * 0
            loss.backward()
            total += loss.detach()
            if self.bug == "no_no_sync":
                for _, p in self.named():
                    dist.all_reduce(p.grad.clone())
        if self.bug == "reduced_after_step":
            self.optimizer.step()
            self.reduce()
            return total
        self.reduce()
        self.optimizer.step()
        return total


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> Manual:
    """Broadcast the start, then train."""
    bug = knobs["bug"]
    if bug == "no_set_epoch":
        data.permutation = lambda n, seed, epoch: _permutation(n, seed, 0)
    if bug == "same_shard":
        data.shard_of = lambda ids, shard, per: _shard_of(ids, 0, per)
    if bug != "no_broadcast":
        for p in model.parameters():
            dist.broadcast(p.data, 0)
    return Manual(model, ctx, bug)
