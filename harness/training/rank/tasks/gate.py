"""Task ``gate``: check that a case trains correctly, before any speed is measured.

A loss curve is not a sufficient test. Without any all-reduce the curve stays within 4e-4 of the
correct one over ten steps, and AdamW hides a wrong gradient scale. The twin of the case (its
smallest size) is therefore compared with the single-device reference. The comparison covers the
initial parameters, the gradient of the first step, and the parameters after several steps of SGD
and of AdamW. In addition, replicas must have identical bits, an epoch must draw each sample once,
and the issued bytes must match the closed form.
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

from harness.base.errors import NotComparableError
from harness.cases import CaseSpec, Device, Mesh, Optimizer, Passes, Precision, Stepping
from harness.cases.limits import rounding
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Gate, LaunchSpec
from harness.record import (
    Category,
    Check,
    CollectiveCount,
    Expected,
    LateSteps,
    RankRecord,
    exchanges,
)
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
from harness.training.rank.afterwards import first_batch
from harness.training.rank.ceiling import ceiling
from harness.training.rank.examine import examine
from harness.training.rank.gate_checks import STEPS, STEPS_PER_EPOCH, Seen, in_turn, inquiries
from harness.training.rank.oracle import (
    Oracle,
    Simulated,
    grad_norm,
    relative_error,
    scale,
    snapshot,
)
from harness.training.rank.setup import Rank
from harness.training.rank.tolerance import (
    FLOOR,
    SCALE,
    Outcome,
    Tolerance,
    dense_step,
    eps_of,
    replicates,
    rounded_scale,
    rounds_layers,
    train,
)
from harness.training.trainer import observe_dtype
from harness.training.tuning import kernels
from harness.training.work import counted_flops

#: The largest norm to which a twin's gradients are clipped. The gradient of every twin is longer,
#: so clipping takes effect in every step.
CLIPPED = 0.1
#: Number of steps on one batch after which a compressed training is compared with a dense one.
PROGRESS_STEPS = 8
#: In these steps the loss of a compressed training must decrease by at least this fraction of the
#: decrease in a dense training.
PROGRESS = 0.05
#: Largest relative error of the gradients of a compressor that discards nothing. Its own arithmetic
#: rounds, too: PowerSGD makes vectors orthogonal, for example.
LOSSLESS = 1e-4
#: Largest relative error of the gradient's scale that a message does not mention.
SHOWN = 5e-3

MakeContext = Callable[[CaseSpec], RankContext]


def prepare(spec: LaunchSpec, nccl_log: Path) -> None:
    """Import the case's files, and switch on what this task needs.

    The flight recorder keeps every collective, so that they can be counted. Kernels are made
    deterministic, and NCCL logs which algorithms it chooses.
    """
    transport.listen(spec.case.backend, nccl_log, "TUNING")
    collectives.enable(collectives.COUNTED)
    Accelerator(torch.device(spec.case.device)).repeatable()
    load(spec.files)


def run(task: Gate, rank: Rank) -> RankRecord:
    """Check the twin, then one step of the case at full size, and return the record."""
    loaded = load(rank.spec.files)
    case = rank.spec.case
    memory = Memory(rank.accelerator)
    context = functools.partial(rank.context, loaded)
    rank.beat(Phase.GATE)
    twin = loaded.at_once(task.twin)
    checks, sent, trainer = run_gate(loaded, twin, context, lambda: rank.beat(Phase.GATE))
    checks += gate_checks.switches(case, rank.accelerator.device)
    checks += gate_checks.sample_checks(loaded, context(twin), rank)
    rank.accelerator.usual()  # at full size deterministic kernels may need too much memory
    kernels.choose(case)
    more, norm, flops = full_size(loaded, case, context(case))
    if (log := rank.file("nccl")).is_file():
        more = [
            *more,
            *of_nccl.checks(
                log.read_text(errors="replace", encoding="utf-8"), case.environment or {}
            ),
        ]
    alone = case.plain and not case.stand_in  # simulated compute has no ceiling
    return rank.record(
        trainer.ran(),
        memory,
        checks=(*checks, *more),
        issued=sent,
        grad_norm=norm,
        probe=None if flops is None else LateSteps(flops=flops),
        ceiling=ceiling(rank.accelerator, case) if alone else None,
    )


def is_exact(case: CaseSpec, mesh: Mesh, expected: Expected) -> bool:
    """Return whether every bit of a training run must equal the reference.

    It must on CPUs if the mesh adds gradients in the order of the reference, and nothing is cast or
    reordered. A pipeline adds its micro-batches in the reference's order at any size. On CUDA,
    kernels may add in another order.
    """
    on_cpu = case.device is Device.CPU
    return on_cpu and mesh.exact and not (expected.casts or expected.reorders)


def run_gate(
    loaded: Loaded, case: CaseSpec, context: MakeContext, beat: Callable[[], None]
) -> tuple[list[Check], Mapping[str, CollectiveCount], Trainer]:
    """Run all checks of the twin.

    Return the checks, the collectives of one period with SGD, and the trainer that was built last.
    A period is the number of steps from one exchange of the ranks to the next. ``context`` makes
    the context of a case, and ``beat`` writes a heartbeat.
    """
    examine(loaded, case, context(case))
    if case.phase is Passes.FORWARD:
        return forward_only(loaded, replace(case, optimizer=Optimizer.SGD), context)
    checks: list[Check] = []
    if case.clip:  # clip to a norm so small that it takes effect in every step
        case = replace(case, clip=min(case.clip, CLIPPED))
    for optimizer in dict.fromkeys((Optimizer.SGD, Optimizer.ADAMW, case.optimizer)):
        # The ``stepping`` of the case applies only to the optimizer of the case, because torch has
        # no fused SGD for DTensors.
        as_timed = optimizer is case.optimizer
        stepping = case.stepping if as_timed else Stepping.USUAL
        twin = replace(case, optimizer=optimizer, stepping=stepping)
        more, traffic, trainer = _train(loaded, twin, context(twin), beat, watch=as_timed)
        checks += more
        if optimizer is Optimizer.SGD:
            checks += gate_checks.byte_checks(loaded, twin, context(twin), traffic)
            first = traffic.issued
        elif optimizer is Optimizer.MUON:  # the closed form includes Muon's collectives
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
        checks += _lossless(loaded, lossless, context(lossless), beat)
    return checks, first, trainer


def _in_fp32(
    loaded: Loaded, case: CaseSpec, context: MakeContext, beat: Callable[[], None]
) -> Iterator[Check]:
    """Repeat the checks in fp32, where rounding errors are negligible, if ranks train separately.

    In 16 bits the averages of parameters are rounded, and signs flip. A missing error feedback has
    the same effect, so the checks in 16 bits could not detect it.
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
    """Check a case that has forward passes only.

    Its losses must equal those of the reference, its weights must not change, and the sent bytes
    must match the closed form, which has no gradients. Return the same values as ``run_gate``.
    """
    ctx = context(case)
    trainer, reference, sampler, origin, dtypes = _start(loaded, case, ctx)
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
    checks.append(_limit(f"parameters_after_{STEPS}", change, 0.0, "weights must not change"))
    checks.append(_whole("all_parameters", dict(trainer.parameters()), origin, ctx))
    checks += gate_checks.byte_checks(loaded, case, ctx, counter.seen)
    checks += [*gate_checks.sampling(drawn, ctx, sampler.epoch), *_dtype(trainer, case, dtypes)]
    return checks, counter.seen.issued, trainer


class TwinTraining(NamedTuple):
    """A trainer and its reference, which begin with the same parameters ``origin``.

    ``dtypes`` collects the dtypes that the layers of the reference return.
    """

    trainer: Trainer
    reference: Oracle
    sampler: Sampler
    origin: dict[str, Tensor]
    dtypes: set[str]


def _train(
    loaded: Loaded,
    case: CaseSpec,
    ctx: RankContext,
    beat: Callable[[], None],
    *,
    watch: bool,
    lossless: bool = False,
) -> tuple[list[Check], Seen, Trainer]:
    """Train the twin and its reference for ``STEPS`` steps, and compare them.

    With ``watch``, one more step checks whether the settings of the case took effect. ``lossless``
    states that the compressor discards nothing, and only rounds. Return the checks, the traffic of
    one period, and the trainer.
    """
    supports = loaded.supports
    name = case.optimizer
    checks = []
    watched: list[nn.Module] = []
    twin = _start(loaded, case, ctx, watched.append)
    trainer, reference, sampler, origin, _ = twin
    facts, model = model_facts(loaded, case)
    expected = expect(loaded, case, model, facts)
    start_error = relative_error(trainer.parameters(), origin)
    checks.append(_limit(f"{name}.start_parameters", start_error, 0.0))
    checks.append(_whole(f"{name}.all_parameters", dict(trainer.parameters()), origin, ctx))
    drawn: list[list[int]] = []
    trained: list[list[Batch]] = []
    seen: list[Sequence[object]] = []
    period = gate_checks.period(loaded, case, ctx)
    # This step begins the last whole period without a short batch.
    first = STEPS - period - bool(sampler.of(STEPS - 1))
    counter = gate_checks.ByteCounter(ctx, range(first, first + period))
    finite = True
    for number in range(STEPS):
        beat()
        ids = sampler.ids(number, ctx.shard)
        drawn.append(ids.tolist())
        trained.append(list(_shards(loaded, case, ctx, sampler, number).values()))
        with counter.of(number), span(f"gate {name}", Category.GATE):
            loss = trainer.step(own_batch(loaded, ctx, ids, sampler.of(number)))
        if isinstance(reference, Simulated) and isinstance(trainer, OuterTrainer):
            seen.append(ctx.gather(getattr(trainer.rule, "seen", None)))
        finite &= loss is None or math.isfinite(float(loss))
        if number == 0:
            gradients = snapshot(trainer.gradients())
            first_loss = None if loss is None else float(loss)
    outcome = Outcome(
        loss=first_loss, gradients=gradients, parameters=snapshot(trainer.parameters())
    )
    wanted = train(reference, trained, seen)
    if not all(bool(tensor.isfinite().all()) for tensor in wanted.parameters.values()):
        raise NotComparableError(
            f"on one device {STEPS} steps of {name} in {case.precision} end in parameters that are"
            " not finite, so that there is nothing to compare: choose another precision, or a"
            " smaller learning rate (--set lr=...)"
        )
    checks.append(_whole(f"{name}.all_gradients", outcome.gradients, wanted.gradients, ctx))
    late = hasattr(getattr(trainer, "rule", None), "seen")
    given = Given(trained, seen, ordered=late)
    tolerance = _tolerance(loaded, case, ctx, expected, given, lossless=lossless)
    checks += _compared(case, tolerance, outcome, wanted, origin, _bound(case, ctx, lossless))
    checks.append(Check(name=f"{name}.finite_loss", ok=finite))
    last = range(STEPS - 1, STEPS)
    if supports.replicas and exchanges(last, expected.period, expected.until, expected.growth):
        checks.append(replicas(trainer, ctx, f"{name}.replicas"))
    if isinstance(reference, Simulated) and name == "sgd" and ctx.world_size > 1:
        checks += gate_checks.communication_checks(loaded, ctx, seen, STEPS)
    checks += _staleness(name, trainer, expected)
    if name == "sgd":
        checks += gate_checks.sampling(drawn, ctx, sampler.epoch)
        checks += _dtype(trainer, case, twin.dtypes)
    counted_by = counter.seen  # read before the watched step, which is not part of the training
    if watch and gate_checks.asked(case):
        checks += gate_checks.setting_checks(watched[0], trainer, own_batch(loaded, ctx, ids), ctx)
    return checks, counted_by, trainer


class Given(NamedTuple):
    """The batches of each step, and what each rank had received from the others in each step.

    Sums over ranks are ``ordered`` if they add messages in the order of their arrival.
    """

    batches: Sequence[list[Batch]]
    seen: Sequence[Sequence[object]]
    ordered: bool


def _tolerance(
    loaded: Loaded,
    case: CaseSpec,
    ctx: RankContext,
    expected: Expected,
    given: Given,
    *,
    lossless: bool,
) -> Tolerance:
    """Return how far a training on these batches may be from its reference."""
    casts = expected.casts and loaded.supports.oracle != "simulated"  # a simulation casts, too
    rounded = replace(expected, casts=casts)

    def outcomes() -> list[Outcome]:
        made = replicates(loaded, case, ctx, rounded, ordered=given.ordered)
        return [train(replicate, given.batches, given.seen) for replicate in made]

    return Tolerance(
        ctx=ctx,
        exact=is_exact(case, ctx.mesh, expected) and not lossless,
        eps=eps_of(case, ctx, rounded),
        layers=rounds_layers(ctx, rounded),
        outcomes=outcomes,
    )


def _bound(case: CaseSpec, ctx: RankContext, lossless: bool) -> float:
    """Return the error of a gradient that the case's compressor may cause; 0 without a compressor.

    Both gradients are clipped to the same norm. A relative error e rotates a gradient by an angle
    of at most asin(e). After clipping the distance is therefore at most sqrt(2) e.
    """
    if ctx.compressor is None:
        return 0.0
    return LOSSLESS if lossless else ctx.compressor.error_bound * (math.sqrt(2) if case.clip else 1)


def _compared(
    case: CaseSpec,
    tolerance: Tolerance,
    outcome: Outcome,
    wanted: Outcome,
    origin: Mapping[str, Tensor],
    bound: float,
) -> Iterator[Check]:
    """Compare the first gradient, the first loss and the last parameters with the reference's.

    ``origin`` are the initial parameters. The error of the parameters is relative to their change.
    A compressor may lose a part of the gradient. Its ``bound`` then applies to the gradient, and
    the later parameters are not compared.
    """
    name = case.optimizer
    ctx = tolerance.ctx
    fp32_eps = torch.finfo(torch.float32).eps
    # A pipeline stage whose parameters are all frozen has no gradient.
    compares = not wanted.gradients.keys().isdisjoint(outcome.parameters)

    def of_gradient(other: Outcome) -> float:
        gradients = iter(other.gradients.items())
        return relative_error(gradients, dict(wanted.gradients)) if compares else 0.0

    def of_scale(other: Outcome) -> float:
        gradients = iter(other.gradients.items())
        return abs(scale(gradients, dict(wanted.gradients)) - 1) if compares else 0.0

    factor = scale(iter(outcome.gradients.items()), dict(wanted.gradients)) if compares else 1.0
    words = _scaled(factor, ctx.world_size)
    check = f"{name}.step1_gradient"
    yield tolerance.check(check, of_gradient(outcome), of_gradient, least=bound, detail=words)
    if ctx.compressor is None:
        # Rounding errors have both signs and cancel in a scale, in every precision.
        off = of_scale(outcome)
        check = f"{name}.step1_gradient_scale"

        def of_rounded_scale(other: Outcome) -> float:
            return rounded_scale(other.gradients, wanted.gradients) if compares else 0.0

        most = math.inf if tolerance.layers else SCALE
        yield tolerance.check(check, off, of_rounded_scale, eps=fp32_eps, most=most, detail=words)

    def of_loss(other: Outcome) -> float:
        values: list[float] = [value for value in ctx.gather(other.loss) if value is not None]
        mean_loss = sum(values) / len(values)
        reference = float(wanted.loss or 0.0)
        return abs(mean_loss - reference) / max(abs(reference), 1e-12)

    yield tolerance.check(f"{name}.step1_loss", of_loss(outcome), of_loss, least=FLOOR * fp32_eps)
    if bound > LOSSLESS:
        return
    # One unit in the last place per two steps is allowed in bf16.
    ulps = STEPS // 2 if case.precision is Precision.BF16 else 0

    def of_parameters(other: Outcome) -> float:
        parameters = iter(other.parameters.items())
        return relative_error(parameters, dict(wanted.parameters), dict(origin), ulps)

    check = f"{name}.parameters_after_{STEPS}"
    yield tolerance.check(check, of_parameters(outcome), of_parameters, least=bound)


def _staleness(name: str, trainer: Trainer, expected: Expected) -> Iterator[Check]:
    """Check by how many steps the slowest rank was late, if ranks do not wait for each other."""
    if (behind := trainer.ran().staleness) is not None:
        limit = math.inf if expected.staleness is None else float(expected.staleness)
        yield _limit(f"{name}.staleness", float(behind), limit, "steps behind")


def _start(
    loaded: Loaded,
    case: CaseSpec,
    ctx: RankContext,
    watch: Callable[[nn.Sequential], None] = lambda model: None,
) -> TwinTraining:
    """Build a trainer and its reference with the same initial weights.

    A strategy that must broadcast the initial weights receives different ones on every rank, so
    that a missing broadcast is detected. ``watch`` receives the plain model.
    """
    supports = loaded.supports
    own_seed = case.seed + (ctx.rank if supports.initial == "broadcast" else 0)
    with ctx.device:
        plain = build_model(loaded, case, case.seed)
    dtypes = observe_dtype(plain)
    simulated = supports.oracle == "simulated"
    reference = Simulated(plain, loaded, ctx) if simulated else Oracle.of(plain, loaded, ctx)

    def prepare(model: nn.Sequential) -> None:
        """Set the buffers, which a strategy need not broadcast, and pass the model to ``watch``."""
        for buffer, of_reference in zip(model.buffers(), plain.buffers(), strict=True):
            buffer.copy_(of_reference)
        watch(model)

    trainer = loaded.build(case, ctx, own_seed, prepare if supports.buffers == "own" else watch)
    sampler = Sampler(ctx.batching, steps_per_epoch=STEPS_PER_EPOCH, seed=case.seed)
    return TwinTraining(trainer, reference, sampler, snapshot(reference.parameters()), dtypes)


def _whole(name: str, seen: Iterable[str], wanted: Mapping[str, Tensor], ctx: RankContext) -> Check:
    """Check that all ranks together have exactly the tensors of the reference, by their names.

    A tensor that is left out of the comparison could be wrong without being noticed.
    """
    present = {name for names in ctx.gather(list(seen)) for name in names}
    missing = sorted(set(wanted) - present)
    extra = sorted(present - set(wanted))
    detail = f"missing {missing[:3]}, unknown {extra[:3]}" if missing or extra else ""
    return Check(name=name, ok=not missing and not extra, value=float(len(present)), detail=detail)


def _lossless(
    loaded: Loaded, case: CaseSpec, ctx: RankContext, beat: Callable[[], None]
) -> Iterator[Check]:
    """Check that a compressor returns the dense gradient if its knobs make it discard nothing.

    ``case`` must have these knobs.
    """
    assert ctx.compressor is not None
    knobs = "at " + ", ".join(f"{key}={knob}" for key, knob in ctx.compressor.knobs.items())
    for check in _train(loaded, case, ctx, beat, watch=False, lossless=True)[0]:
        for what in ("gradient", "parameters"):
            if f".step1_{what}" in f"{check.name}." or f".{what}_after" in check.name:
                detail = "; ".join(filter(None, [knobs, check.detail]))
                yield replace(check, name=f"lossless_{what}", detail=detail)


def _progress(loaded: Loaded, case: CaseSpec, context: MakeContext) -> Check:
    """Check that the loss of one batch decreases enough, compared with dense training.

    Other checks cannot show this: a compressor that discards everything agrees with a reference
    that does the same, and a strategy agrees with its own simulation. The twin is trained in fp32
    and without clipping here. Weights in bf16 would absorb the small updates of one batch, and
    clipped updates would all have the same length.
    """
    wide = Precision.FP32 if case.precision is Precision.BF16 else case.precision
    twin = loaded.at_once(replace(case, optimizer=Optimizer.SGD, precision=wide, clip=0.0))
    ctx = context(twin)
    trainer, reference, sampler, *_ = _start(loaded, twin, ctx)
    if isinstance(reference, Simulated):
        with ctx.device:
            reference = Oracle.of(build_model(loaded, twin, twin.seed), loaded, ctx)
    batches = _shards(loaded, twin, ctx, sampler, 0)
    dense = [dense_step(reference, list(batches.values())) for _ in range(PROGRESS_STEPS)]
    mean_losses = []
    for _ in range(PROGRESS_STEPS):
        loss = trainer.step(batches[ctx.shard])
        losses = [x for x in ctx.gather(None if loss is None else float(loss)) if x is not None]
        mean_losses.append(sum(losses) / len(losses))
    share = (mean_losses[0] - mean_losses[-1]) / (dense[0] - dense[-1])
    message = f"fraction of the dense progress in {PROGRESS_STEPS} steps on one batch"
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
    """Map each shard that this rank's reference computes to its batch of a step (``in_turn``)."""
    whole = range(ctx.batching.shards)
    return {
        shard: make_batch(loaded, case, sampler.ids(step, shard), ctx.device, sampler.of(step))
        for shard in (whole if in_turn(ctx) else [ctx.shard])
    }


def _scaled(factor: float, world_size: int) -> str:
    """Return a message about the scale of the gradient, or "" if the scale is near 1."""
    if not math.isfinite(factor) or abs(factor - 1) < SHOWN:
        return ""
    message = f"gradients are {factor:.3g} times the reference"
    if world_size > 1 and abs(factor / world_size - 1) < 0.01:
        return f"{message}; they may be summed over ranks and not averaged"
    if world_size > 1 and abs(factor * world_size - 1) < 0.01:
        return f"{message}; they may be averaged twice"
    return message


def _limit(name: str, value: float, limit: float, detail: str = "") -> Check:
    """Return a check that passes if ``value`` is at most ``limit``."""
    return Check(name=name, ok=value <= limit, value=value, limit=limit, detail=detail)


def _loss(name: str, loss: Tensor | None, wanted: float, ctx: RankContext, case: CaseSpec) -> Check:
    """Compare the mean of the ranks' losses in a forward pass with the reference's loss."""
    values = [v for v in ctx.gather(None if loss is None else float(loss)) if v is not None]
    mean_loss = sum(values) / len(values)
    return _limit(
        f"{name}.step1_loss", abs(mean_loss - wanted) / max(abs(wanted), 1e-12), rounding(case)
    )


def _dtype(trainer: Trainer, case: CaseSpec, of_reference: set[str]) -> list[Check]:
    """Check that layers returned the dtype that follows from the case's precision.

    A model may have layers of other dtypes, which the reference's layers then return as well.
    """
    dtype = trainer.ran().compute_dtype
    if not dtype:
        return []
    wants = {Precision.BF16: "bfloat16", Precision.AUTOCAST: "bfloat16", Precision.FP16: "float16"}
    want = wants.get(case.precision, "float32")  # float8 is used only inside of matrix products
    ok = dtype == want or set(dtype.split(",")) == of_reference
    return [Check(name="compute_dtype", ok=ok, detail=f"{dtype}, requested: {want}")]


def replicas(trainer: Trainer, ctx: RankContext, name: str) -> Check:
    """Check that the parameters on ranks with the same part of the model are equal bit by bit."""
    parameters = list(trainer.parameters())
    names = hashlib.sha256("\n".join(key for key, _ in parameters).encode()).hexdigest()
    bits = digest(tensor.detach() for _, tensor in parameters)
    digests = ctx.gather((ctx.part, names, bits))
    unlike = len(set(digests)) - len({part for part, *_ in digests})
    message = f"{unlike + 1} versions of the parameters on {len(digests)} ranks"
    return Check(name=name, ok=not unlike, detail=message)


def full_size(
    loaded: Loaded, case: CaseSpec, ctx: RankContext
) -> tuple[list[Check], float | None, float | None]:
    """Run one step of the case at full size, and check it.

    The loss must be finite, replicas must be equal, and the model may not read the size of the
    world. Return the checks, the norm of the whole gradient, and the FLOPs of the step's products.
    The norm is None if ranks train separately or if there is no backward pass. The FLOPs are None
    if all files of the case belong to this package.
    """
    supports = loaded.supports
    batch = first_batch(loaded, ctx)
    who = inquiries(loaded)
    flops = None
    losses: list[Tensor | None] = []
    with who.noted():
        trainer = loaded.build(case, ctx, case.seed)
        if loaded.ships_all:
            losses.append(trainer.step(batch))
        else:
            flops = counted_flops(lambda: losses.append(trainer.step(batch)), weighted=True)
    (loss,) = losses
    finite = loss is None or math.isfinite(float(loss))
    checks = [who.check(), Check(name="full_size.finite_loss", ok=finite)]
    if supports.oracle == "simulated" or case.phase is Passes.FORWARD:
        return checks, None, flops  # there is no common gradient
    if supports.replicas:
        checks.append(replicas(trainer, ctx, "full_size.replicas"))
    norm = grad_norm(trainer.gradients())
    norms: list[tuple[int, float]] = ctx.gather((ctx.part, norm))
    parts = dict(norms)
    equal = len(set(norms)) == len(parts)
    checks.append(Check(name="full_size.equal_norms", ok=equal, value=norm))
    total = math.fsum(part * part for part in parts.values()) ** 0.5
    return checks, total if len(parts) > 1 else norm, flops
