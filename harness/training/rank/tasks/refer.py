"""Task ``refer``: train the plain model as the harness itself does, for its losses.

Each rank takes its own shard; gradients are exchanged and added in rank order, so that no strategy
and no collective that adds has a part in it. A compressor's gradients go through the compressor,
one bucket a step: there is no other truth for what a lossy compressor should train. Where the model
is too large for a device, one rank takes the shards in turn, a block of the model at a time.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from harness.cases import Passes
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import LaunchSpec, Refer
from harness.record import RankRecord, WhatRan
from harness.record.store import Samples
from harness.training.context import Loaded, RankContext, build_model, load
from harness.training.feeds import Feed
from harness.training.hooks import Hook, Late
from harness.training.observe.memory import Memory
from harness.training.rank.oracle import Oracle, added, shaped
from harness.training.rank.setup import Rank
from harness.training.rank.simulated import Simulated
from harness.training.rank.streamed import Streamed

#: The batches of a shard, step by step.
Batches: TypeAlias = Callable[[int], Feed]


def prepare(spec: LaunchSpec, _: Path) -> None:
    load(spec.files)


def run(task: Refer, rank: Rank) -> RankRecord:
    loaded = load(rank.spec.files)
    case = loaded.at_once(task.of)
    memory = Memory(rank.accelerator)
    ctx = rank.context(loaded, case)
    with torch.device("cpu") if task.streamed else ctx.device:
        model = build_model(loaded, case, case.seed)
    alone = task.streamed or loaded.supports.oracle == "simulated"
    train = _in_turn if alone else _side_by_side
    losses: list[float] = []

    def batches(shard: int) -> Feed:
        own = dataclasses.replace(ctx, shard=shard)
        return loaded.feed(rank.source(loaded, own, task.steps), plain=True)

    for loss in train(loaded, ctx, model, batches, task.steps):
        rank.beat(Phase.GATE, len(losses))
        losses.append(loss)
    zeros = np.zeros(task.steps)
    samples = Samples(
        marks_s=np.zeros(task.steps + 1),
        loss=np.array(losses),
        sample_ids=np.zeros((task.steps, 0), dtype=np.int64),
        rss_bytes=zeros.astype(np.int64),
        step_s=zeros,
    )
    return rank.record(WhatRan(module=type(model).__name__), memory, samples=samples)


def _side_by_side(
    loaded: Loaded, ctx: RankContext, model: nn.Module, batches: Batches, steps: int
) -> Iterator[float]:
    """This rank's loss of every step, its gradients added to those of the other shards."""
    oracle = Oracle.of(model, loaded, ctx)
    hook: Hook | None = None
    if ctx.compressor is not None:
        hook = ctx.compressor.build(ctx)
        if ctx.compressor.start:
            hook = Late(hook, ctx.compressor.start, ctx.world_size)
    encoder = Encoder(model)
    feed = batches(ctx.shard)
    for step in range(steps):
        if ctx.case.phase is Passes.FORWARD:
            yield oracle.forward([feed(step)])
            continue
        loss, own = oracle.backward(feed(step))
        yield float(loss)
        oracle.update(added(own, ctx.batching.shards) if hook is None else encoder(own, hook))


def _in_turn(
    loaded: Loaded, ctx: RankContext, model: nn.Module, batches: Batches, steps: int
) -> Iterator[float]:
    """The mean loss of every step over all shards."""
    simulated = loaded.supports.oracle == "simulated"
    oracle = Simulated(model, loaded, ctx) if simulated else Streamed.of(model, loaded, ctx)
    shards = range(ctx.batching.shards)
    feeds = [batches(shard) for shard in shards]
    for step in range(steps):
        every = [feed(step) for feed in feeds]
        forward = ctx.case.phase is Passes.FORWARD
        yield oracle.forward(every) if forward else oracle.step(every)


class Encoder:
    """Puts every rank's gradients through a compressor, in the order in which DDP lays them out.

    As the model has them in the first step, as backward made them in that step from then on: a
    compressor that works on blocks of a bucket depends on the order.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._order = list(range(len(self._parameters)))
        self._arrived: list[int] = []
        self._handles = [
            p.register_post_accumulate_grad_hook(lambda _, i=i: self._arrived.append(i))
            for i, p in enumerate(self._parameters)
        ]

    def __call__(self, own: Sequence[Tensor], hook: Any) -> list[Tensor]:
        laid_out = [own[i] for i in self._order]
        flat = torch.cat([g.flatten() for g in laid_out])
        trained = [self._parameters[i] for i in self._order]
        bucket = Bucket(flat=flat, parts=shaped(flat, laid_out), trained=trained)
        decoded = dict(zip(self._order, shaped(hook(bucket).wait(), laid_out), strict=True))
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._order = self._arrived[-len(own) :] or self._order
        return [decoded[i] for i in range(len(own))]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """What DDP gives a communication hook, for all parameters at once."""

    flat: Tensor
    parts: list[Tensor]
    trained: list[nn.Parameter]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        return self.parts

    def parameters(self) -> list[nn.Parameter]:
        return self.trained
