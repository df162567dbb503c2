"""Task ``refer``: train the plain model as a reference, to obtain the correct losses.

Each rank computes its own shard. Gradients are exchanged and added in rank order, so the result
depends neither on a strategy nor on the order in which a collective adds. If the case has a
compressor, gradients pass through it in one bucket per step, because nothing else defines the
correct result of a lossy compressor. If the model is too large for a device, one rank computes all
shards in turn, with one block of the model on the device at a time.

Replicates repeat the training with other rounding errors. They show how far the losses of correct
launches may differ.
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

#: A compressor's hook is checked once more after this number of calls, or after as many calls as
#: the training has steps if that is less.
OLD = 200
#: A training is divided into this number of equal parts, for which mean squares of gradients are
#: recorded.
PARTS = 16
#: Training must change the loss of a batch by at least this relative amount. A loss that hardly
#: depends on the weights would not show that an update was left out. The limit is two rounding
#: errors in fp32. Losses of correct training runs change by 4e-4 and more in eight steps, and by
#: less while the learning rate warms up.
SHOWN = 2.4e-7
#: This change is required only of a training with at least this number of steps.
SHOWN_AFTER = 4
#: A function that returns the feed of a shard. The feed returns the shard's batch of a step.
Batches: TypeAlias = Callable[[int], Feed]


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training of the plain model, with its rounding.

    ``shares`` estimates the ranks' shares in a compressor's output, if there is a compressor.
    ``squares`` receives two squared norms for every step: of the gradient of this shard, and of the
    mean gradient of all shards.
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
    """Import the case's files."""
    load(spec.files)


def run(task: Refer, rank: Rank) -> RankRecord:
    """Train the reference and its replicates, and return the record with their losses."""
    loaded = load(rank.spec.files)
    case = loaded.at_once(task.of)
    memory = Memory(rank.accelerator)
    ctx = rank.context(loaded, case)
    alone = task.streamed or loaded.supports.oracle == "simulated"
    train = _in_turn if alone else _side_by_side
    made = ""
    squares: list[tuple[float, float]] = []

    def batches(shard: int) -> Feed:
        """Return the feed of a shard."""
        of_shard = dataclasses.replace(ctx, shard=shard)
        return loaded.feed(rank.source(loaded, of_shard, task.steps), plain=True)

    def losses(rounding: Rounding, shares: CodecShares | None = None) -> list[float]:
        """Train a new model with this rounding, and return the loss of every step."""
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
    # A model may read the size of the world only in a late step, after the few steps of the
    # correctness check.
    with who.noted():
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
    """Check that the losses of trained and of untrained weights on the same batch differ."""
    change = abs(trained - untrained) / max(abs(untrained), 1e-12)
    return Check(
        name="loss.shows_updates",
        ok=not change < SHOWN,  # other checks report losses that are not finite
        value=change,
        limit=SHOWN,
        at_least=True,
        detail="the loss hardly depends on the weights" if change < SHOWN else "",
    )


def _square(gradients: Sequence[Tensor]) -> float:
    """Return the squared Euclidean norm of these gradients together."""
    return sum(float(gradient.float().square().sum()) for gradient in gradients)


def _by_parts(squares: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the means of both squared norms in each of ``PARTS`` equal parts of a training.

    The parts show how much the means vary. The result is empty for fewer steps than parts.
    """
    if len(squares) < PARTS:
        return ()
    means = [part.mean(0).tolist() for part in np.array_split(np.array(squares), PARTS)]
    return tuple((of_shard, of_all) for of_shard, of_all in means)


def _side_by_side(training: Training) -> Iterator[float]:
    """Train with each rank on its own shard, and yield this rank's loss of every step.

    The gradients of all shards are added, or passed through the compressor.
    """
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
    """Train with all shards on this rank, and yield the mean loss of all shards in every step."""
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
    """Passes the gradients of a rank through a compressor, in the order in which DDP lays them out.

    In the first step this is the order of the model's parameters. From then on it is the order in
    which the backward pass of the first step completed the gradients. A compressor that works on
    blocks of a bucket depends on that order.
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
        """Call the hook with all gradients as one bucket, and return its output by parameter."""
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
    """A substitute for DDP's ``GradBucket`` that contains the gradients of all parameters."""

    flat: Tensor
    parts: list[Tensor]
    trained: list[nn.Parameter]

    def index(self) -> int:
        """Return 0, the index of the only bucket."""
        return 0

    def is_last(self) -> bool:
        """Return True, because a step has a single bucket."""
        return True

    def buffer(self) -> Tensor:
        """Return the flat gradient of all parameters."""
        return self.flat

    def gradients(self) -> list[Tensor]:
        """Return a view of the flat gradient for each parameter."""
        return self.parts

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the bucket."""
        return self.trained
