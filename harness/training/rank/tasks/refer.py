"""Task ``refer``: train the plain model as the harness itself does, for its losses.

Each rank takes its own shard; gradients are exchanged and added in rank order, so that no strategy
and no collective that adds has a part in it. A compressor's gradients go through the compressor,
one bucket a step: there is no other truth for what a lossy compressor should train. Where the model
is too large for a device, one rank takes the shards in turn, a block of the model at a time.

Replicates are the same training with other roundings: so far honest launches may differ.
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
from harness.record import Check, ExecutedModel, RankRecord
from harness.record.store import Samples
from harness.training.context import Loaded, RankContext, build_model, load
from harness.training.feeds import Feed
from harness.training.observe.memory import Memory
from harness.training.rank import invariants
from harness.training.rank.gate_checks import inquiries
from harness.training.rank.invariants import CodecShares
from harness.training.rank.oracle import Oracle, Simulated, Streamed, added, shaped
from harness.training.rank.rounding import OtherRounding, Rounding
from harness.training.rank.setup import Rank
from harness.training.transports import Hook, Late

#: Calls after which a compressor is old: those of a timed window, but no more than this.
OLD = 200
#: Parts of a training whose gradients' squares are kept apart.
PARTS = 16
#: By so much, relatively, training must change a loss, after so many steps: one that hardly depends
#: on the weights would not show an update that was left out. It is two roundings of fp32; honest
#: losses change by 4e-4 and more in eight steps, and by less while the learning rate warms up.
SHOWN = 2.4e-7
SHOWN_AFTER = 4
#: The batches of a shard, step by step.
Batches: TypeAlias = Callable[[int], Feed]


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training of the plain model, and how it rounds.

    ``shares`` looks at what a compressor makes of the gradients; ``squares`` takes the square of
    this shard's gradient, and that of all shards' mean, of every step.
    """

    loaded: Loaded
    ctx: RankContext
    model: nn.Module
    batches: Batches
    steps: int
    rounding: Rounding
    shares: CodecShares | None
    squares: list[tuple[float, float]]


def prepare(spec: LaunchSpec, _: Path) -> None:
    load(spec.files)


def run(task: Refer, rank: Rank) -> RankRecord:
    loaded = load(rank.spec.files)
    case = loaded.at_once(task.of)
    memory = Memory(rank.accelerator)
    ctx = rank.context(loaded, case)
    alone = task.streamed or loaded.supports.oracle == "simulated"
    train = _in_turn if alone else _side_by_side
    made = ""
    squares: list[tuple[float, float]] = []

    def batches(shard: int) -> Feed:
        of_shard = dataclasses.replace(ctx, shard=shard)
        return loaded.feed(rank.source(loaded, of_shard, task.steps), plain=True)

    def losses(rounding: Rounding, shares: CodecShares | None = None) -> list[float]:
        nonlocal made
        with torch.device("cpu") if task.streamed else ctx.device:
            model = build_model(loaded, rounding.case(case), case.seed)
        rounding.watch(model)
        made = type(model).__name__
        training = Training(
            loaded=loaded,
            ctx=ctx,
            model=model,
            batches=batches,
            steps=task.steps,
            rounding=rounding,
            shares=shares,
            squares=squares if type(rounding) is Rounding else [],
        )
        trained = train(training)
        of_steps: list[float] = []
        while True:
            with rounding.choosing():
                loss = next(trained, None)
            if loss is None:
                return of_steps
            rank.beat(Phase.GATE, len(of_steps))
            of_steps.append(loss)

    coded = ctx.compressor is not None and case.phase is not Passes.FORWARD
    shares = CodecShares(ctx) if coded and not alone else None
    who = inquiries(loaded)
    with who.noted():  # a model may ask late, when its gate has long been passed
        usual = losses(Rounding(), shares)
    replicates = [
        losses(
            OtherRounding(
                ctx.device,
                seed=number * ctx.world_size + ctx.rank,
                coarse=task.coarse,
                tie=number,
            )
        )
        for number in range(task.replicates)
    ]
    checks = [who.check()]
    if not alone and case.phase is not Passes.FORWARD and task.steps >= SHOWN_AFTER:
        with ctx.device:
            untrained = build_model(loaded, case, case.seed)
        last = task.steps - 1
        without = Oracle.of(untrained, loaded, ctx).forward([batches(ctx.shard)(last)])
        checks.append(shows_updates(usual[last], without))
    zeros = np.zeros(task.steps)
    samples = Samples(
        marks_s=np.zeros(task.steps + 1),
        loss=np.array(usual),
        sample_ids=np.zeros((task.steps, 0), dtype=np.int64),
        rss_bytes=zeros.astype(np.int64),
        step_s=zeros,
        replicates=np.array(replicates) if replicates else None,
    )
    if shares is not None and ctx.compressor is not None:
        checks += [shares.check(), *invariants.aged(ctx, ctx.compressor, min(task.steps, OLD))]
    return rank.record(
        ExecutedModel(module=made),
        memory,
        samples=samples,
        checks=tuple(checks),
        squares=_by_parts(squares),
    )


def shows_updates(trained: float, untrained: float) -> Check:
    """Whether a loss of the same batch tells weights that were trained from those that were not."""
    change = abs(trained - untrained) / max(abs(untrained), 1e-12)
    return Check(
        name="loss.shows_updates",
        ok=not change < SHOWN,  # what is not finite is told elsewhere
        value=change,
        limit=SHOWN,
        at_least=True,
        detail="the loss hardly depends on the weights" if change < SHOWN else "",
    )


def _square(gradients: Sequence[Tensor]) -> float:
    return sum(float(gradient.float().square().sum()) for gradient in gradients)


def _by_parts(squares: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Means over equal parts of a training, so that a record says how they scatter."""
    if len(squares) < PARTS:
        return ()
    means = [part.mean(0).tolist() for part in np.array_split(np.array(squares), PARTS)]
    return tuple((of_shard, of_all) for of_shard, of_all in means)


def _side_by_side(training: Training) -> Iterator[float]:
    """This rank's loss of every step, its gradients added to those of the other shards."""
    ctx = training.ctx
    model = training.model
    oracle = Oracle.of(model, training.loaded, ctx)
    hook: Hook | None = None
    if ctx.compressor is not None:
        hook = ctx.compressor.build(ctx)
        if ctx.compressor.start:
            hook = Late(hook, ctx.compressor.start, ctx.world_size)
    encoder = Encoder(model)
    feed = training.batches(ctx.shard)
    for step in range(training.steps):
        if ctx.case.phase is Passes.FORWARD:
            yield oracle.forward([feed(step)])
            continue
        oracle.begin_step()
        loss, gradients = oracle.backward(feed(step))
        yield float(loss)
        rounded = training.rounding.gradients(gradients)
        made = added(rounded, ctx.batching.shards) if hook is None else encoder(rounded, hook)
        if hook is None and ctx.batching.shards > 1:
            training.squares.append((_square(rounded), _square(made)))
        if training.shares is not None:
            training.shares.add(rounded, made)
        oracle.share(ctx.batching.shards)
        oracle.update(made)


def _in_turn(training: Training) -> Iterator[float]:
    """The mean loss of every step over all shards."""
    ctx = training.ctx
    loaded = training.loaded
    simulated = loaded.supports.oracle == "simulated"
    reference = Simulated if simulated else Streamed.of
    oracle = reference(training.model, loaded, ctx)
    shards = range(ctx.batching.shards)
    feeds = [training.batches(shard) for shard in shards]
    for step in range(training.steps):
        batches = [feed(step) for feed in feeds]
        forward = ctx.case.phase is Passes.FORWARD
        yield oracle.forward(batches) if forward else oracle.step(batches)


class Encoder:
    """Puts every rank's gradients through a compressor, in the order in which DDP lays them out.

    As the model has them in the first step, as backward made them in that step from then on: a
    compressor that works on blocks of a bucket depends on the order.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [weights for weights in model.parameters() if weights.requires_grad]
        self._order = list(range(len(self._parameters)))
        self._arrived: list[int] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(lambda _, i=i: self._arrived.append(i))
            for i, parameter in enumerate(self._parameters)
        ]

    def __call__(self, gradients: Sequence[Tensor], hook: Any) -> list[Tensor]:
        laid_out = [gradients[i] for i in self._order]
        flat = torch.cat([tensor.flatten() for tensor in laid_out])
        trained = [self._parameters[i] for i in self._order]
        bucket = Bucket(flat=flat, parts=shaped(flat, laid_out), trained=trained)
        decoded = dict(zip(self._order, shaped(hook(bucket).wait(), laid_out), strict=True))
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._order = self._arrived[-len(gradients) :] or self._order
        return [decoded[i] for i in range(len(gradients))]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The bucket that DDP gives a communication hook, for all parameters at once."""

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
