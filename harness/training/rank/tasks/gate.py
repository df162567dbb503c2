"""The correctness gate: is this case's training right, before any speed is looked at?

A loss curve is no oracle: without any all-reduce it stays within 4e-4 over ten steps, and AdamW
hides a wrong gradient scale. So the twin (smallest size) is compared with the single-device
reference: start, step-1 gradient, parameters after K steps of SGD and then AdamW; replicas must
be equal to the bit, samples drawn once per epoch, bytes issued as the closed form says.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.cases import CaseSpec, Device, Mesh, Optimizer, Passes, Precision, Stepping
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Gate, LaunchSpec
from harness.record import Category, Check, CollectiveCount, Expected, RankRecord, exchanges
from harness.training.accelerator import Accelerator
from harness.training.context import (
    Loaded,
    RankContext,
    Trainer,
    build_model,
    load,
    make_batch,
    own_batch,
)
from harness.training.data import Batch, Sampler
from harness.training.describe import expect, model_facts
from harness.training.observe import collectives
from harness.training.observe.intake import digest
from harness.training.observe.memory import Memory
from harness.training.observe.spans import span
from harness.training.parallel.outer import OuterTrainer
from harness.training.rank import gate_checks, invariants, transport, transport as of_nccl
from harness.training.rank.ceiling import ceiling
from harness.training.rank.gate_checks import STEPS, STEPS_PER_EPOCH, Seen, in_turn, inquiries
from harness.training.rank.oracle import (
    Oracle,
    Simulated,
    grad_norm,
    relative_error,
    scale,
    snapshot,
)
from harness.training.rank.rounding import OtherRounding
from harness.training.rank.setup import Rank
from harness.training.tuning import kernels

#: Shorter than any twin's gradient.
CLIPPED = 0.1
#: Steps on one batch, and the share of the dense progress that a compressed training must make.
PROGRESS_STEPS = 8
PROGRESS = 0.05
#: Of lossless codecs. In 16 bits and less the dense gradient itself is rounded, on other ways, and
#: weights that differ by little round a step otherwise: as far as a step-1 gradient may be.
LOSSLESS = 1e-4
LOSSLESS_ROUNDED = 3e-2

#: Largest wrong factor of a gradient; rounding to bf16 on 8 ranks makes 2e-3 of one, in mlp-nano.
#: Where layers round otherwise and the gradient is short it may be more, and no more than the last.
SCALE = 5e-3
SCALE_SHARDS = 8
SCALE_WIDEST = 2e-2

#: An update beyond its limit is compared with so many trainings that round otherwise, and may be
#: so many times farther off than the farthest of them, but no more than ``WIDEST``: a router that
#: sends one token elsewhere moves weights farther than any rounding. With experts in bf16 honest
#: updates of 3 ranks are off by 0.04, the least wrong one by 0.17.
REPLICATES = 3
APART = 10.0
WIDEST = 0.12
#: The same of a first gradient, to which roundings of several steps do not add up, and of ranks
#: that train apart: sums that begin with other ranks end as far off as honest ranks do (0.9 to 1.1
#: of it; 0.2 at most, of experts in bf16).
NEAR = 2.0
#: Where signs of what was moved are sent, one that flips is as large as what is sent on the whole:
#: no more is allowed than a wrong training has.
FLIPPED_WIDEST = 0.5

MakeContext = Callable[[CaseSpec], RankContext]


def prepare(spec: LaunchSpec, nccl_log: Path) -> None:
    """Import what is trained; every collective is kept, to be counted, and CUDA made repeatable.

    NCCL is asked to say which algorithms it takes.
    """
    transport.listen(spec.case.backend, nccl_log, "TUNING")
    collectives.enable(collectives.COUNTED)
    Accelerator(torch.device(spec.case.device)).repeatable()
    load(spec.files)


def run(task: Gate, rank: Rank) -> RankRecord:
    """Check the twin, then one step of the case at full size."""
    loaded = load(rank.spec.files)
    case = rank.spec.case
    memory = Memory(rank.accelerator)
    context = functools.partial(rank.context, loaded)
    rank.beat(Phase.GATE)
    twin = loaded.at_once(task.twin)
    checks, sent, trainer = run_gate(loaded, twin, context, lambda: rank.beat(Phase.GATE))
    checks += gate_checks.switches(case, rank.accelerator.device)
    checks += gate_checks.sample_checks(loaded, context(twin), rank)
    rank.accelerator.usual()  # at full size only kernels fit that are not repeatable
    kernels.choose(case)
    more, norm = full_size(loaded, case, context(case))
    if (log := rank.file("nccl")).is_file():
        more = [
            *more,
            *of_nccl.checks(
                log.read_text(errors="replace", encoding="utf-8"), case.environment or {}
            ),
        ]
    alone = case.plain and not case.stand_in  # a device that waits has no ceiling
    return rank.record(
        trainer.ran(),
        memory,
        checks=(*checks, *more),
        issued=sent,
        grad_norm=norm,
        ceiling=ceiling(rank.accelerator, case) if alone else None,
    )


def limits(
    case: CaseSpec, mesh: Mesh, oracle: str, expected: Expected
) -> tuple[float, float, float]:
    """Largest relative error of step-1 gradient, of SGD's update, of AdamW's update.

    A pipeline adds its micro-batches in the reference's order at any size. On CUDA kernels may
    differ in order.
    """
    on_cpu = case.device is Device.CPU
    casts = expected.casts
    if on_cpu and mesh.exact and not (casts or expected.reorders):
        return 0.0, 0.0, 0.0
    # AdamW divides by a root that can be near zero: its limit is wide, SGD's is not.
    apart = oracle == "simulated"  # parameters that are averaged round more than gradients
    if case.precision is Precision.FP32 and (apart or not casts):
        return 1e-5, 2e-3 if apart else 2e-5, 2e-3 if apart else 1e-3
    # Autocast on the CPU: the same batches round alike in both, as long as the weights are alike.
    if case.precision is Precision.AUTOCAST and on_cpu and not (casts or apart):
        return 1e-5, 2e-5, 6e-2
    if case.precision is Precision.FP8:  # three bits of mantissa: one flip is 6 % of an element
        return 3e-2, 6e-2, 0.25
    # Signs of next to nothing flip in 8 bits: 0.11 was seen on 4 ranks. Wrong training has 0.5.
    return 3e-2, 3e-2, 0.25


def run_gate(
    loaded: Loaded, case: CaseSpec, context: MakeContext, beat: Callable[[], None]
) -> tuple[list[Check], Mapping[str, CollectiveCount], Trainer]:
    """All checks of the twin; the collectives of one step; the last trainer built."""
    if case.phase is Passes.FORWARD:
        return forward_only(loaded, replace(case, optimizer=Optimizer.SGD), context)
    checks: list[Check] = []
    if case.clip:  # so that gradients are clipped in every step
        case = replace(case, clip=min(case.clip, CLIPPED))
    for optimizer in dict.fromkeys((Optimizer.SGD, Optimizer.ADAMW, case.optimizer)):
        # Only its own optimizer steps as the case asks: torch has no fused SGD of DTensors.
        as_timed = optimizer is case.optimizer
        stepping = case.stepping if as_timed else Stepping.USUAL
        twin = replace(case, optimizer=optimizer, stepping=stepping)
        more, traffic, trainer = _train(loaded, twin, context(twin), beat, watch=as_timed)
        checks += more
        if optimizer is Optimizer.SGD:
            checks += gate_checks.byte_checks(loaded, twin, context(twin), traffic)
            first = traffic.issued
        elif optimizer is Optimizer.MUON:  # what it gathers is in the closed form
            again = gate_checks.byte_checks(loaded, twin, context(twin), traffic)
            checks += [replace(check, name=f"{optimizer}.{check.name}") for check in again]
    if loaded.supports.oracle == "simulated":
        checks.append(_progress(loaded, case, context))
        checks += _in_fp32(loaded, case, context, beat)
    if (compressor := loaded.compressor(case)) is not None:
        checks.append(_progress(loaded, case, context))
        checks += invariants.checks(context(case), compressor)
    if loaded.codec is not None and hasattr(loaded.codec, "LOSSLESS"):
        knobs = {f"{case.compressor}.{key}": value for key, value in loaded.codec.LOSSLESS.items()}
        lossless = replace(case, optimizer=Optimizer.SGD, knobs={**case.knobs, **knobs})
        checks += _lossless(loaded, lossless, context(lossless))
    return checks, first, trainer


def _in_fp32(
    loaded: Loaded, case: CaseSpec, context: MakeContext, beat: Callable[[], None]
) -> Iterator[Check]:
    """Of ranks that train apart: the twin in fp32, too, where nothing is rounded to speak of.

    In 16 bits their means are, and signs flip: an error which is not handed on looks like that.
    """
    if case.precision is Precision.FP32:
        return
    wide = replace(case, precision=Precision.FP32)
    for optimizer in dict.fromkeys((Optimizer.SGD, case.optimizer)):
        twin = replace(wide, optimizer=optimizer, stepping=Stepping.USUAL)
        for check in _train(loaded, twin, context(twin), beat, watch=False)[0]:
            yield replace(check, name=f"fp32.{check.name}")


def forward_only(
    loaded: Loaded, case: CaseSpec, context: MakeContext
) -> tuple[list[Check], Mapping[str, CollectiveCount], Trainer]:
    """Losses must be the reference's, weights must stay, and no gradient may be sent."""
    ctx = context(case)
    trainer, reference, sampler, origin = _start(loaded, case, ctx)
    counter = gate_checks.ByteCounter(ctx, range(STEPS - 1, STEPS))
    checks, drawn = [], []
    for step in range(STEPS):
        ids = sampler.ids(step, ctx.shard)
        drawn.append(ids.tolist())
        batches = [
            make_batch(loaded, case, sampler.ids(step, s), ctx.device, sampler.of(step))
            for s in range(ctx.batching.shards)
        ]
        with counter.of(step):
            loss = trainer.step(own_batch(loaded, ctx, ids, sampler.of(step)))
        wanted = reference.forward(batches)
        checks.append(_loss(f"forward{step}", loss, wanted, ctx, case))
    change = relative_error(trainer.parameters(), origin)
    checks.append(_limit(f"parameters_after_{STEPS}", change, 0.0, "weights stay"))
    checks.append(_whole("all_parameters", trainer.parameters(), origin, ctx))
    checks += gate_checks.byte_checks(loaded, case, ctx, counter.seen)
    checks += [*gate_checks.sampling(drawn, ctx, sampler.epoch), *_dtype(trainer, case)]
    return checks, counter.seen.issued, trainer


class TwinTraining(NamedTuple):
    """Trainer and reference of a gate, from the same weights, and where these were."""

    trainer: Trainer
    reference: Oracle
    sampler: Sampler
    origin: dict[str, Tensor]


def _train(
    loaded: Loaded, case: CaseSpec, ctx: RankContext, beat: Callable[[], None], *, watch: bool
) -> tuple[list[Check], Seen, Trainer]:
    """``watch``: one more step shows whether the case's settings took effect."""
    supports = loaded.supports
    name = case.optimizer
    checks = []
    watched: list[nn.Module] = []
    twin = _start(loaded, case, ctx, watched.append)
    trainer, reference, sampler, origin = twin
    facts, model = model_facts(loaded, case)
    expected = expect(loaded, case, model, facts)
    gradient_limit, sgd_limit, adamw_limit = limits(case, ctx.mesh, supports.oracle, expected)
    update_limit = sgd_limit if name == "sgd" else adamw_limit
    compressed = supports.oracle == "compressed" and ctx.compressor is not None
    if compressed and ctx.compressor is not None:
        # Both are cut to one norm: an error e turns a gradient by asin e, and ends sqrt(2) e apart.
        cut = math.sqrt(2) if case.clip else 1.0
        gradient_limit = max(gradient_limit, ctx.compressor.error_bound * cut)
    start_error = relative_error(trainer.parameters(), origin)
    checks.append(_limit(f"{name}.start_parameters", start_error, 0.0))
    checks.append(_whole(f"{name}.all_parameters", trainer.parameters(), origin, ctx))
    drawn: list[list[int]] = []
    trained: list[list[Batch]] = []
    seen: list[Sequence[object]] = []
    period = gate_checks.period(loaded, case, ctx)
    first = STEPS - period - bool(sampler.of(STEPS - 1))  # the first of a whole period and batch
    counter = gate_checks.ByteCounter(ctx, range(first, first + period))
    finite = True
    for step in range(STEPS):
        beat()
        ids = sampler.ids(step, ctx.shard)
        drawn.append(ids.tolist())
        batches = list(_shards(loaded, case, ctx, sampler, step).values())
        trained.append(batches)
        with counter.of(step), span(f"gate {name}", Category.GATE):
            loss = trainer.step(own_batch(loaded, ctx, ids, sampler.of(step)))
        if isinstance(reference, Simulated) and isinstance(trainer, OuterTrainer):
            known = ctx.gather(getattr(trainer.rule, "seen", None))
            reference.note_seen(known)
            seen.append(known)
        wanted = _dense(reference, batches, ctx)
        finite &= loss is None or math.isfinite(float(loss))
        if step == 0:
            gradients = dict(reference.gradients())
            checks.append(_whole(f"{name}.all_gradients", trainer.gradients(), gradients, ctx))
            checks += _gradient(loaded, case, expected, gradient_limit, twin, batches)
            checks.append(_loss(name, loss, wanted, ctx, case))
    if not compressed or gradient_limit == 0.0:
        checks.append(_parameters(loaded, case, expected, update_limit, twin, trained))
    checks.append(Check(name=f"{name}.finite_loss", ok=finite))
    last = range(STEPS - 1, STEPS)
    if supports.replicas and exchanges(last, expected.period, expected.until, expected.growth):
        checks.append(replicas(trainer, ctx, f"{name}.replicas"))
    if isinstance(reference, Simulated) and name == "sgd" and ctx.world_size > 1:
        checks += gate_checks.communication_checks(loaded, ctx, seen, STEPS)
    checks += _staleness(name, trainer, expected)
    if name == "sgd":
        checks += gate_checks.sampling(drawn, ctx, sampler.epoch)
        checks += _dtype(trainer, case)
    counted_by = counter.seen  # of training, not of the step that is watched now
    if watch and gate_checks.asked(case):
        checks += gate_checks.setting_checks(watched[0], trainer, own_batch(loaded, ctx, ids), ctx)
    return checks, counted_by, trainer


def _parameters(
    loaded: Loaded,
    case: CaseSpec,
    expected: Expected,
    limit: float,
    twin: TwinTraining,
    trained: Sequence[list[Batch]],
) -> Check:
    """How far trainer and reference ended apart, of the way from where both began.

    Beyond ``limit`` right trainings that round otherwise say how far that may be.
    """
    trainer, reference, _, origin = twin
    ctx = reference.ctx
    ulps = STEPS // 2 if case.precision is Precision.BF16 else 0  # one flip in two steps
    wanted = dict(reference.parameters())
    error = relative_error(trainer.parameters(), wanted, dict(origin), ulps)
    detail = ""
    # Of a shard shorter than a vector torch's CPU kernels round a bf16 update otherwise.
    sharded = any("Shard(" in placement for placement in expected.placements)
    apart = isinstance(reference, Simulated)
    rounds = limit or (sharded and case.precision is Precision.BF16)
    signs = apart and expected.casts
    # Where a rule has what came in until then, no order of sums says what another rank would have.
    timely = hasattr(getattr(trainer, "rule", None), "seen")
    sums_round = not timely and (signs or case.precision is not Precision.FP32)
    if (sums_round if apart else rounds) and any(ctx.gather(error > limit)):
        layers = bool(ctx.mesh.splits or expected.casts or expected.reorders)
        others = (
            _begun_elsewhere(loaded, case, ctx, trained)
            if apart
            else _rounded_otherwise(loaded, case, ctx, trained, layers=layers)
        )
        farthest = _farthest(others, wanted, origin, ulps, ctx)
        times = NEAR if apart else APART
        widest = FLIPPED_WIDEST if signs else WIDEST
        limit = min(max(limit, times * farthest), max(limit, widest))
        detail = f"other roundings of the reference make {farthest:.2g}"
    return _limit(f"{case.optimizer}.parameters_after_{STEPS}", error, limit, detail)


def _farthest(
    others: Iterable[Oracle],
    wanted: Mapping[str, Tensor],
    origin: Mapping[str, Tensor],
    ulps: int,
    ctx: RankContext,
) -> float:
    """How far, of the update, the farthest of these ends from ``wanted``, where the reference did.

    All of them began at ``origin``; so many ``ulps`` are no difference.
    """
    farthest = 0.0
    for other in others:
        off = relative_error(other.parameters(), dict(wanted), dict(origin), ulps)
        farthest = max([farthest, *ctx.gather(off)])
    return farthest


def _rounded_otherwise(
    loaded: Loaded,
    case: CaseSpec,
    ctx: RankContext,
    trained: Sequence[list[Batch]],
    *,
    layers: bool,
) -> Iterator[Oracle]:
    """Trained replicates; without ``layers`` gradients alone round otherwise."""
    for replicate in _replicates(loaded, case, ctx, layers=layers):
        for batches in trained:
            _dense(replicate, batches, ctx)
        yield replicate


def _begun_elsewhere(
    loaded: Loaded, case: CaseSpec, ctx: RankContext, trained: Sequence[list[Batch]]
) -> Iterator[Oracle]:
    """Trained simulations whose sums begin with another rank, as a ring's parts do."""
    for begin in range(1, min(ctx.batching.shards, REPLICATES + 1)):
        with ctx.device:
            model = build_model(loaded, case, case.seed)
        simulated = Simulated(model, loaded, ctx, begin=begin)
        for batches in trained:
            _dense(simulated, batches, ctx)
        yield simulated


def _replicates(
    loaded: Loaded, case: CaseSpec, ctx: RankContext, *, layers: bool
) -> Iterator[Oracle]:
    """References that round otherwise: their gradients, and with ``layers`` what layers give."""
    for number in range(REPLICATES):
        rounding = OtherRounding(ctx.device, seed=number * ctx.world_size + ctx.rank, coarse=False)
        with ctx.device:
            model = build_model(loaded, rounding.case(case), case.seed)
        if layers:
            rounding.watch(model)
        yield Oracle.of(model, loaded, ctx, rounding)


def _staleness(name: str, trainer: Trainer, expected: Expected) -> Iterator[Check]:
    """How far behind the slowest rank was, where ranks take what has come in."""
    if (behind := trainer.ran().staleness) is not None:
        limit = math.inf if expected.staleness is None else float(expected.staleness)
        yield _limit(f"{name}.staleness", float(behind), limit, "steps behind")


def _gradient(
    loaded: Loaded,
    case: CaseSpec,
    expected: Expected,
    limit: float,
    twin: TwinTraining,
    batches: list[Batch],
) -> Iterator[Check]:
    """The step-1 gradient against the reference's: how far it is off, and how much too long.

    Where layers round otherwise, right trainings that do say beyond these limits how far that may
    be: a gradient that happens to be short is all rounding.
    """
    trainer, reference, _, _ = twin
    ctx = reference.ctx
    wanted = dict(reference.gradients())
    factor = scale(trainer.gradients(), wanted)
    words = _scaled(factor, ctx.world_size)
    error = relative_error(trainer.gradients(), wanted)
    most = SCALE * max(1.0, ctx.batching.shards / SCALE_SHARDS) ** 0.5  # roundings add up
    layers = bool(ctx.mesh.splits or expected.casts or expected.reorders)
    rounds = layers and limit and case.precision is not Precision.FP32
    replicated = rounds and ctx.compressor is None and not isinstance(reference, Simulated)
    beyond = ctx.gather((error > limit, abs(factor - 1) > most))
    off_beyond, scale_beyond = (any(column) for column in zip(*beyond, strict=True))
    if replicated and (off_beyond or scale_beyond):
        farthest = longest = 0.0
        for replicate in _rounded_otherwise(loaded, case, ctx, [batches], layers=True):
            off = relative_error(replicate.gradients(), wanted)
            stretched = abs(scale(replicate.gradients(), wanted) - 1)
            farthest = max([farthest, *ctx.gather(off)])
            longest = max([longest, *ctx.gather(stretched)])
        if off_beyond:
            limit = max(limit, min(NEAR * farthest, WIDEST))
        if scale_beyond:
            most = max(most, min(NEAR * longest, SCALE_WIDEST))
        words += f"; other roundings of the reference make {farthest:.2g}, and {longest:.2g} of it"
    yield _limit(f"{case.optimizer}.step1_gradient", error, limit, words.removeprefix("; "))
    if ctx.compressor is None:
        check = f"{case.optimizer}.step1_gradient_scale"
        yield _limit(check, abs(factor - 1), most, words.removeprefix("; "))


def _start(
    loaded: Loaded,
    case: CaseSpec,
    ctx: RankContext,
    watch: Callable[[nn.Sequential], None] = lambda model: None,
) -> TwinTraining:
    """Trainer and reference from the same weights.

    A strategy that must broadcast its start is given different weights on every rank, so that a
    missing broadcast shows.
    """
    supports = loaded.supports
    own_seed = case.seed + (ctx.rank if supports.initial == "broadcast" else 0)
    with ctx.device:
        plain = build_model(loaded, case, case.seed)
    simulated = supports.oracle == "simulated"
    reference = Simulated(plain, loaded, ctx) if simulated else Oracle.of(plain, loaded, ctx)
    trainer = loaded.build(case, ctx, own_seed, watch)
    sampler = Sampler(ctx.batching, steps_per_epoch=STEPS_PER_EPOCH, seed=case.seed)
    return TwinTraining(trainer, reference, sampler, snapshot(reference.parameters()))


def _whole(
    name: str, seen: Iterator[tuple[str, Tensor]], wanted: Mapping[str, Tensor], ctx: RankContext
) -> Check:
    """Checks that the comparison covers all there is, over all ranks: nothing left out is right."""
    present = {n for names in ctx.gather([n for n, _ in seen]) for n in names}
    missing = sorted(set(wanted) - present)
    extra = sorted(present - set(wanted))
    detail = f"missing {missing[:3]}, unknown {extra[:3]}" if missing or extra else ""
    return Check(name=name, ok=not missing and not extra, value=float(len(present)), detail=detail)


def _lossless(loaded: Loaded, case: CaseSpec, ctx: RankContext) -> list[Check]:
    """With nothing thrown away, a compressor must give the dense gradient, step after step."""
    trainer, reference, sampler, _ = _start(loaded, case, ctx)
    error = 0.0
    dense: list[tuple[list[Batch], dict[str, Tensor]]] = []
    for step in range(STEPS):
        batches = _shards(loaded, case, ctx, sampler, step)
        trainer.step(batches[ctx.shard])
        _dense(reference, list(batches.values()), ctx)
        wanted = snapshot(reference.gradients())
        dense.append((list(batches.values()), wanted))
        error = max(error, relative_error(trainer.gradients(), wanted))
    assert ctx.compressor is not None
    detail = "at " + ", ".join(f"{key}={knob}" for key, knob in ctx.compressor.knobs.items())
    limit = LOSSLESS if case.precision is Precision.FP32 else LOSSLESS_ROUNDED
    if case.precision is not Precision.FP32 and any(ctx.gather(error > limit)):
        farthest = 0.0
        for replicate in _replicates(loaded, case, ctx, layers=False):
            for batch_of_shards, wanted in dense:
                _dense(replicate, batch_of_shards, ctx)
                off = relative_error(replicate.gradients(), wanted)
                farthest = max([farthest, *ctx.gather(off)])
        limit = min(max(limit, APART * farthest), WIDEST)
        detail += f"; other roundings of the reference make {farthest:.2g}"
    return [_limit("lossless_gradient", error, limit, detail)]


def _progress(loaded: Loaded, case: CaseSpec, context: MakeContext) -> Check:
    """A compressed training must learn: how far the loss of one batch falls, of what dense does.

    A compressor that threw everything away would agree with a reference that does so, too, and so
    would a strategy that nobody but its own simulation is compared with. Weights
    in bf16 swallow the small updates of one batch, whoever makes them, and clipped ones are all of
    one length: this twin has fp32, and is not clipped.
    """
    wide = Precision.FP32 if case.precision is Precision.BF16 else case.precision
    twin = loaded.at_once(replace(case, optimizer=Optimizer.SGD, precision=wide, clip=0.0))
    ctx = context(twin)
    trainer, reference, sampler, _ = _start(loaded, twin, ctx)
    if isinstance(reference, Simulated):
        with ctx.device:
            reference = Oracle.of(build_model(loaded, twin, twin.seed), loaded, ctx)
    batches = _shards(loaded, twin, ctx, sampler, 0)
    dense = [_dense(reference, list(batches.values()), ctx) for _ in range(PROGRESS_STEPS)]
    mean_losses = []
    for _ in range(PROGRESS_STEPS):
        loss = trainer.step(batches[ctx.shard])
        losses = [x for x in ctx.gather(None if loss is None else float(loss)) if x is not None]
        mean_losses.append(sum(losses) / len(losses))
    share = (mean_losses[0] - mean_losses[-1]) / (dense[0] - dense[-1])
    message = f"of the dense progress in {PROGRESS_STEPS} steps on one batch"
    return Check(
        name="progress",
        ok=share >= PROGRESS,
        value=share,
        limit=PROGRESS,
        detail=message,
        at_least=True,
    )


def _shards(
    loaded: Loaded, case: CaseSpec, ctx: RankContext, sampler: Sampler, step: int
) -> Mapping[int, Batch]:
    """A step's batches by shard: of few all of them, of many this rank's own."""
    whole = range(ctx.batching.shards)
    return {
        shard: make_batch(loaded, case, sampler.ids(step, shard), ctx.device, sampler.of(step))
        for shard in (whole if in_turn(ctx) else [ctx.shard])
    }


def _dense(reference: Oracle, batches: list[Batch], ctx: RankContext) -> float:
    """A step of the reference: all shards in turn, or each rank its own, however many there are."""
    if len(batches) == ctx.batching.shards:
        return reference.step(batches)
    return reference.together(batches[0])


def _scaled(factor: float, world_size: int) -> str:
    """Words the factor between gradient and reference; empty for none to speak of."""
    if not math.isfinite(factor) or abs(factor - 1) < SCALE:
        return ""
    message = f"gradients are {factor:.3g} times the reference"
    if world_size > 1 and abs(factor / world_size - 1) < 0.01:
        return f"{message}: summed over ranks, not averaged?"
    if world_size > 1 and abs(factor * world_size - 1) < 0.01:
        return f"{message}: averaged twice?"
    return message


def _limit(name: str, value: float, limit: float, detail: str = "") -> Check:
    return Check(name=name, ok=value <= limit, value=value, limit=limit, detail=detail)


def _loss(name: str, loss: Tensor | None, wanted: float, ctx: RankContext, case: CaseSpec) -> Check:
    """The mean of the ranks' step-1 losses against the reference's."""
    values = [v for v in ctx.gather(None if loss is None else float(loss)) if v is not None]
    mean_loss = sum(values) / len(values)
    limit = 1e-5 if case.precision is Precision.FP32 else 2e-2
    return _limit(f"{name}.step1_loss", abs(mean_loss - wanted) / max(abs(wanted), 1e-12), limit)


def _dtype(trainer: Trainer, case: CaseSpec) -> list[Check]:
    """Layers must really have computed in the dtype that was asked for."""
    dtype = trainer.ran().compute_dtype
    if not dtype:
        return []
    wants = {Precision.BF16: "bfloat16", Precision.AUTOCAST: "bfloat16", Precision.FP16: "float16"}
    want = wants.get(case.precision, "float32")  # float8 is of the products alone
    return [Check(name="compute_dtype", ok=dtype == want, detail=f"{dtype}, asked for {want}")]


def replicas(trainer: Trainer, ctx: RankContext, name: str) -> Check:
    """Ranks of the same part of the model must hold the same bits."""
    parameters = list(trainer.parameters())
    names = hashlib.sha256("\n".join(key for key, _ in parameters).encode()).hexdigest()
    bits = digest(tensor.detach() for _, tensor in parameters)
    digests = ctx.gather((ctx.part, names, bits))
    unlike = len(set(digests)) - len({part for part, *_ in digests})
    message = f"{unlike + 1} different of {len(digests)}"
    return Check(name=name, ok=not unlike, detail=message)


def full_size(loaded: Loaded, case: CaseSpec, ctx: RankContext) -> tuple[list[Check], float | None]:
    """One step at the case's own size: finite loss, equal replicas, and the gradient's norm."""
    supports = loaded.supports
    sampler = Sampler(ctx.batching, steps_per_epoch=STEPS_PER_EPOCH, seed=case.seed)
    ids = sampler.ids(0, ctx.shard)
    who = inquiries(loaded)
    with who.noted():
        trainer = loaded.build(case, ctx, case.seed)
        loss = trainer.step(own_batch(loaded, ctx, ids))
    finite = loss is None or math.isfinite(float(loss))
    checks = [who.check(), Check(name="full_size.finite_loss", ok=finite)]
    if supports.oracle == "simulated" or case.phase is Passes.FORWARD:
        return checks, None  # after one step every rank has gone its own way
    if supports.replicas:
        checks.append(replicas(trainer, ctx, "full_size.replicas"))
    norm = grad_norm(trainer.gradients())
    norms: list[tuple[int, float]] = ctx.gather((ctx.part, norm))
    parts = dict(norms)
    equal = len(set(norms)) == len(parts)
    checks.append(Check(name="full_size.equal_norms", ok=equal, value=norm))
    total = math.fsum(part * part for part in parts.values()) ** 0.5
    return checks, total if len(parts) > 1 else norm
