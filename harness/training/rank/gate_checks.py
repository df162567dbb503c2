"""Checks of the stage ``gate``, which checks a case before any speed is measured.

They cover the bytes that ranks exchange, the samples of the input, the communication between ranks,
queries of the world size, and settings of the case. ``tasks/gate.py`` runs them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.callback import callback_handler

from harness.base.programs import PACKAGE
from harness.cases import Attention, CaseSpec, Compiled, Precision, Stepping
from harness.host import nvml
from harness.record import Check, CollectiveCount, Expected, exchanges, headers
from harness.training.accelerator import Accelerator
from harness.training.context import (
    Loaded,
    RankContext,
    Trainer,
    build_model,
    make_batch,
    own_batch,
)
from harness.training.data import Batch, Sampler
from harness.training.describe import expect, model_facts
from harness.training.observe import collectives, kernel_counters
from harness.training.parallel.outer import vector
from harness.training.rank.oracle import Simulated
from harness.training.rank.setup import Rank
from harness.training.rank.sources import is_installed
from harness.training.tuning import kernels
from harness.training.tuning.recompute import OnHost
from harness.training.tuning.tuned import Tuned

#: Bytes that a rank may send to each other rank in addition to the expected ones. They are message
#: headers of operations that the flight recorder does not see (sends, barriers).
WIRE_SLACK = 16_384
#: Training steps that the correctness check compares with the reference.
STEPS = 4


class Seen(NamedTuple):
    """The traffic of this rank in one or more steps.

    ``issued`` maps each operation to the count and the payload of its collectives. ``wire`` holds
    the bytes on the rank's sockets, or is None if the kernel does not count them.
    """

    issued: Mapping[str, CollectiveCount]
    wire: kernel_counters.Wire | None


class ByteCounter:
    """Counts this rank's traffic in one period: from one exchange of the ranks to the next."""

    def __init__(self, ctx: RankContext, steps: range) -> None:
        self.ctx = ctx
        self.steps = steps
        self.seen = Seen({}, None)

    @contextlib.contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Return a context that counts the traffic inside it if ``step`` is one of ``self.steps``.

        For other steps it counts nothing. Entering and leaving the context are collectives of all
        ranks.
        """
        backend = self.ctx.case.backend
        meet(self.ctx)
        position = collectives.mark(backend)
        before = kernel_counters.read()
        yield
        passed = collectives.since(position, backend)
        meet(self.ctx)  # after this barrier all sent bytes are acknowledged
        after = kernel_counters.read()
        over = after.since(before) if after and before else None
        if step not in self.steps:
            return
        if step > self.steps.start:
            passed = added(self.seen.issued, passed)
            over = None if over is None or self.seen.wire is None else self.seen.wire + over
        self.seen = Seen(passed, over)


def meet(ctx: RankContext) -> None:
    """Wait for all ranks, if there is more than one."""
    if ctx.world_size > 1:
        dist.barrier()


def period(loaded: Loaded, case: CaseSpec, ctx: RankContext) -> int:
    """Return the number of steps from one exchange to the next.

    Raise ValueError if ``STEPS`` is not a multiple of this period.
    """
    steps = 1
    if ctx.world_size > 1:
        facts, model = model_facts(loaded, case)
        steps = expect(loaded, case, model, facts).period
    if STEPS % steps:
        raise ValueError(
            f"ranks exchange every {steps} steps, but the correctness check has {STEPS} steps:"
            f" state a TWIN with a period that divides {STEPS}"
        )
    return steps


def added(
    calls: Mapping[str, CollectiveCount], other: Mapping[str, CollectiveCount]
) -> Mapping[str, CollectiveCount]:
    """Add the counts and payloads of the collectives of two steps, operation by operation."""
    none = CollectiveCount(count=0, payload_bytes=0)
    pairs = {key: (calls.get(key, none), other.get(key, none)) for key in {*calls, *other}}
    return {
        name: CollectiveCount(
            count=a.count + b.count, payload_bytes=a.payload_bytes + b.payload_bytes
        )
        for name, (a, b) in pairs.items()
    }


def byte_checks(loaded: Loaded, case: CaseSpec, ctx: RankContext, traffic: Seen) -> list[Check]:
    """Compare the bytes of one period of exchanges with the strategy's closed form.

    The issued payloads are compared operation by operation. Gloo's sends are left out, because the
    flight recorder does not see them. Under gloo the bytes on the sockets are compared, too.
    """
    if ctx.world_size == 1:
        return []
    facts, model = model_facts(loaded, case)
    expected = expect(loaded, case, model, facts)
    steps = range(STEPS - expected.period, STEPS)
    talking = exchanges(steps, expected.period, expected.until, expected.growth)
    checked = []
    times = expected.period * talking
    promised = {key: value[ctx.rank] * times for key, value in expected.payload_bytes.items()}
    if case.backend == "gloo":
        promised.pop("send", None)
    for operation in sorted({*promised, *traffic.issued}):
        want = promised.get(operation, 0.0)
        payload_bytes = (
            traffic.issued[operation].payload_bytes if operation in traffic.issued else 0
        )
        ratio = (
            f"{payload_bytes / want:.3f}x of the closed form"
            if want
            else "the closed form has no such operation"
        )
        checked.append(
            check(
                f"bytes.{operation}",
                abs(payload_bytes - want) <= 0.005 * want + 64,
                payload_bytes,
                want,
                ratio,
            )
        )
    if case.backend == "gloo" and traffic.wire is None:
        checked.append(
            Check(name="bytes.sent", ok=True, detail="not counted: the kernel reports no TCP_INFO")
        )
    elif case.backend == "gloo" and traffic.wire is not None:
        want = expected.sent_bytes[ctx.rank] * times
        sent = traffic.wire.sent_bytes
        beside = WIRE_SLACK * (ctx.world_size - 1) + headers(traffic.issued, ctx.world_size)
        right = 0.995 * want <= sent <= 1.05 * want + beside
        difference = _against(float(sent), want, expected)
        checked.append(check("bytes.sent", right, sent, want, difference))
    return checked


def _against(sent: float, want: float, expected: Expected) -> str:
    """Return the ratio of the sent bytes to the expected bytes, and to a dense exchange's bytes.

    For example ``50.3x of (N-1) 8 k, 1.00x of dense``.
    """
    if not want:
        return expected.formula
    dense = f", {sent / expected.dense_bytes:.2f}x of dense" if expected.dense_bytes else ""
    return f"{sent / want:.3f}x of {expected.formula}{dense}"


def check(name: str, ok: bool, value: float, limit: float, detail: str = "") -> Check:
    """Return a check whose value and limit are converted to float."""
    return Check(name=name, ok=ok, value=float(value), limit=float(limit), detail=detail)


#: Number of steps in an epoch of the correctness check. Its ``STEPS`` steps cover two epochs.
STEPS_PER_EPOCH = 2


def sample_checks(loaded: Loaded, ctx: RankContext, rank: Rank) -> Iterator[Check]:
    """Check the batches of the case's input over two epochs.

    Each batch must contain the samples whose ids it states. Each epoch must contain all samples.
    """
    whole = replace(ctx.batching, last=ctx.batching.global_batch)
    sampler = Sampler(whole, steps_per_epoch=STEPS_PER_EPOCH, seed=ctx.case.seed)
    feed = loaded.feed(rank.source(loaded, ctx, STEPS, sampler=sampler))
    drawn = []
    wrong = 0
    for step in range(STEPS):
        batch = feed(step)
        wanted = own_batch(loaded, ctx, batch.ids)
        same = torch.equal(batch.inputs, wanted.inputs)
        wrong += not (same and torch.equal(batch.targets, wanted.targets))
        drawn.append(batch.ids.tolist())
    message = f"{wrong} of {STEPS} batches do not contain the samples whose ids they state"
    yield Check(name="input.content", ok=not wrong, detail=message if wrong else "")
    yield from sampling(drawn, ctx, sampler.epoch, "input.")


def sampling(
    drawn: list[list[int]], ctx: RankContext, samples: int, of: str = ""
) -> Iterator[Check]:
    """Check that all shards together draw each sample once per epoch, in a different order.

    ``drawn`` lists this rank's sample ids of every step. ``samples`` is the number of samples of an
    epoch. ``of`` is a prefix for the names of the checks. This is a collective of all ranks.
    """
    per_rank: list[list[list[int]]] = ctx.gather(drawn)
    shards = list({ctx.mesh.shard(rank): ids for rank, ids in enumerate(per_rank)}.values())
    epochs = [
        [i for step in range(e, e + STEPS_PER_EPOCH) for shard in shards for i in shard[step]]
        for e in range(0, STEPS, STEPS_PER_EPOCH)
    ]
    once = all(sorted(epoch) == list(range(samples)) for epoch in epochs)
    yield check(f"{of}samples_once_per_epoch", once, len(set(epochs[0])), samples)
    differ = epochs[0] != epochs[1]
    yield Check(name=f"{of}epochs_differ", ok=differ, detail="order of the samples in two epochs")


#: The parameters of the other ranks must change by at least this fraction of the change on the
#: ranks that trained on different samples.
LEAST_HEARD = 0.01
#: Up to this number of shards every rank computes the reference for all shards in turn. With more
#: shards each rank computes its own shard.
IN_TURN = 2
#: Largest number of ranks that a message lists.
SHOWN = 8


def communication_checks(
    loaded: Loaded, ctx: RankContext, seen: Sequence[Sequence[object]], steps: int
) -> Iterator[Check]:
    """Check that training on some ranks changes the parameters of the other ranks.

    One bit of the shard's number divides the ranks into two halves. One half trains on different
    samples than usual. The parameters of the other half must then change, too. It is enough if one
    of the two directions works, because strategies such as federated averaging draw a few ranks
    whose updates reach the rest. Up to eight shards are divided by every bit in turn. More shards
    are divided by the lowest, the middle and the highest bit, so that the cost does not grow with
    the world.

    ``seen`` holds, for each step, what each rank had received from the other ranks. Only some
    strategies depend on it. This is a collective of all ranks.
    """
    if loaded.supports.jobs > 1:
        return
    shards = ctx.batching.shards
    usual = _trained(loaded, ctx, [False] * shards, seen, steps).double()
    least = 1.0
    worst = ""
    highest = (shards - 1).bit_length() - 1
    for bit in sorted({0, highest // 2, highest} if highest > 2 else range(highest + 1)):
        best = 0.0
        for side in (0, 1):
            changed = [shard >> bit & 1 == side for shard in range(shards)]
            other = _trained(loaded, ctx, changed, seen, steps)
            moved = float((other.double() - usual).norm())
            moves = ctx.gather((changed[ctx.shard], moved))
            trained = max((m for is_changed, m in moves if is_changed), default=0.0)
            heard = max((m for is_changed, m in moves if not is_changed), default=0.0)
            best = max(best, heard / trained if trained else 0.0)
            if best >= LEAST_HEARD:
                break
        if best < least:
            least = best
            apart = [shard for shard in range(shards) if shard >> bit & 1]
            more = ", ..." if len(apart) > SHOWN else ""
            names = ", ".join(map(str, apart[:SHOWN]))
            worst = (
                f"fraction of a change on ranks {names}{more} that reaches the other ranks"
                " (or of a change on the other ranks that reaches these ranks)"
            )
    yield Check(
        name="ranks_hear_each_other",
        ok=least >= LEAST_HEARD,
        value=least,
        limit=LEAST_HEARD,
        detail=worst,
        at_least=True,
    )


def in_turn(ctx: RankContext) -> bool:
    """Return whether every rank computes the reference for all shards in turn.

    With many shards, each rank computes only its own shard.
    """
    shards = ctx.batching.shards
    return shards <= IN_TURN or shards < ctx.world_size


def _trained(
    loaded: Loaded,
    ctx: RankContext,
    changed: Sequence[bool],
    seen: Sequence[Sequence[object]],
    steps: int,
) -> Tensor:
    """Return this rank's parameters (flat) after ``steps`` steps of the simulated reference.

    The shards that are marked in ``changed`` train on different samples than usual.
    """
    case = ctx.case
    with ctx.device:
        simulated = Simulated(build_model(loaded, case, case.seed), loaded, ctx)
    sampler = Sampler(ctx.batching, steps_per_epoch=2 * steps + 1, seed=case.seed)
    for step in range(steps):

        def batch(shard: int, step: int = step) -> Batch:
            ids = sampler.ids(step + steps * changed[shard], shard)
            return make_batch(loaded, case, ids, ctx.device)

        if seen:
            simulated.note_seen(seen[step])
        if in_turn(ctx):
            simulated.step([batch(shard) for shard in range(len(changed))])
        else:
            simulated.together(batch(ctx.shard))
    return vector(simulated.model)


#: Environment variables from which a process can read its rank or the size of the world.
VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID")
_TORCH = Path(dist.__file__).parents[1]
#: Functions of torch that return the rank or the size of the world.
_TELLS: frozenset[CodeType] = frozenset(
    function.__code__ for function in (dist.get_world_size, dist.get_rank)
)
ProfileFunction: TypeAlias = Callable[[FrameType, str, object], object]
#: Methods of a process group that return the size of the world or a rank.
_METHODS = ("size", "rank")
#: Prefixes of the type names of the objects to which pybind11 binds its methods. The type depends
#: on the version of pybind11.
_BOUND = ("PyCapsule", "pybind11")
#: Functions that read an environment variable.
_READS: frozenset[CodeType] = frozenset(
    function.__code__ for function in (os._Environ.__getitem__, os.getenv)
)


@functools.cache
def _resolved(file: str) -> Path:
    """Return the resolved path of a file."""
    return Path(file).resolve()


class WorldSizeQueries:
    """Finds code that reads the size of the world or a rank.

    A model must compute the same function in every world, so its file ``model`` must read neither.
    The files in ``allowed`` may read both. ``where`` lists the places that break this rule, as
    ``file.py:line``.
    """

    def __init__(self, model: str, allowed: Sequence[str]) -> None:
        self.where: list[str] = []
        self._model = str(Path(model).resolve())
        self._allowed = {str(Path(file).resolve()) for file in allowed}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Return a context in which the calls of this thread are watched.

        Calls of torch's compiler are left out, because there are millions of them.
        """
        before = sys.getprofile()
        sys.setprofile(self._look)
        thread = threading.get_ident()

        def switch(look: ProfileFunction | None, _: object) -> None:
            if threading.get_ident() == thread:  # another thread has no profiler to switch
                sys.setprofile(look)

        pause = partial(switch, None)
        resume = partial(switch, self._look)
        callback_handler.register_start_callback(pause)
        callback_handler.register_end_callback(resume)
        try:
            yield
        finally:
            callback_handler.remove_start_callback(pause)
            callback_handler.remove_end_callback(resume)
            sys.setprofile(before)

    def _look(self, frame: FrameType, event: str, called: object) -> None:
        """Note a call that reads a rank or the size of the world. This is a profile function."""
        if event == "c_call":
            bound = type(getattr(called, "__self__", None)).__name__
            if getattr(called, "__name__", "") in _METHODS and bound.startswith(_BOUND):
                self._note(frame)
        elif event == "call":
            read = frame.f_code in _READS and frame.f_locals.get("key") in VARIABLES
            if read or frame.f_code in _TELLS:
                self._note(frame.f_back)

    def _note(self, caller: FrameType | None) -> None:
        """Note the place of a call if the code there may not read a rank or the size of the world.

        The innermost frame that belongs to one of the case's files decides. If there is none, the
        innermost code that is not installed is noted. An installed library may therefore read them
        for itself or for a strategy, but not for a model.
        """
        asks = ""
        while caller is not None:
            file = caller.f_code.co_filename
            path = _resolved(file)
            place = f"{path.name}:{caller.f_lineno}"
            if str(path) == self._model:
                self.where.append(place)
                return
            backend = isinstance(caller.f_locals.get("self"), dist.ProcessGroup)
            if str(path) in self._allowed or backend:  # a process group written in Python
                return
            if path.is_relative_to(PACKAGE) or path.is_relative_to(_TORCH):
                break
            library = file.startswith("<frozen") or is_installed(str(path.parent))
            asks = asks or ("" if library else place)
            caller = caller.f_back
        if asks:
            self.where.append(asks)

    def check(self) -> Check:
        """Return a check that fails if any place was noted."""
        places = ", ".join(dict.fromkeys(self.where[:3]))
        detail = f"the size of the world or a rank is read in {places}" if places else ""
        return Check(name="model.knows_no_world", ok=not self.where, detail=detail)


def inquiries(loaded: Loaded) -> WorldSizeQueries:
    """Return a ``WorldSizeQueries`` for a case; all its files except the model may query."""
    files = {kind: str(module.__file__) for kind, module in loaded.modules.items()}
    return WorldSizeQueries(
        files["model"], [file for kind, file in files.items() if kind != "model"]
    )


def asked(case: CaseSpec) -> bool:
    """Return whether a case has a setting whose effect can be observed in a training step."""
    return bool(
        case.checkpoint
        or case.offload
        or case.attention is not Attention.ANY
        or case.compiled is not Compiled.NO
        or case.stepping is not Stepping.USUAL
        or case.precision is Precision.FP8
    )


def setting_checks(model: Any, trainer: Trainer, batch: Batch, ctx: RankContext) -> Iterator[Check]:
    """Run one more step, and check that every setting of the case took effect on all ranks.

    ``model`` is the plain model from which this trainer was built.
    """
    tuned: Tuned = model.tuned
    case = ctx.case
    accelerator = Accelerator(ctx.device)
    for block in tuned.counts:
        block.first = block.again = 0
    moved = OnHost.moved_bytes
    ran = kernels.operators(accelerator, lambda: trainer.step(batch))
    total: Counter[str] = sum(ctx.gather(ran), Counter())
    if case.attention is not Attention.ANY:
        attention = kernels.attention_of(total)
        yield _check(
            "attention", attention == case.attention, f"{attention or 'no attention'} ran", case
        )
    if case.compiled is not Compiled.NO:
        regions = kernels.regions_of(total)
        wanted = max(ctx.gather(tuned.num_compiled))
        message = f"{regions} compiled regions ran, for {wanted} blocks"
        yield _check("compiled", regions >= wanted > 0, message, case)
    if case.stepping is not Stepping.USUAL:
        stepping = kernels.stepping_of(total)
        yield _check("stepping", stepping is case.stepping, f"{stepping} ran", case)
    if case.checkpoint:
        counts_before = [(c.first, c.again) for c in tuned.counts]
        counts: list[tuple[int, int]] = [
            pair for rank in ctx.gather(counts_before) for pair in rank
        ]
        kept_out, repeated = sum(kept for kept, _ in counts), sum(again for _, again in counts)
        message = f"{repeated} of {kept_out} checkpointed blocks were recomputed"
        done = kept_out > 0 and all(again >= kept for kept, again in counts)
        yield _check("checkpoint", done, message, case)
    if case.offload:
        to_host = sum(ctx.gather(OnHost.moved_bytes - moved))
        yield _check("offload", to_host > 0, f"{to_host} bytes were moved to the host", case)
    if case.precision is Precision.FP8:
        count = sum(n for name, n in total.items() if name.startswith("_scaled_mm"))
        message = f"{count} matrix products of 8-bit values ran, for {tuned.num_narrow} layers"
        yield _check("precision", count >= 3 * tuned.num_narrow > 0, message, case)


def switches(case: CaseSpec, device: torch.device) -> Iterator[Check]:
    """Check the settings of an accelerator that can be read without running a step."""
    if device.type == "cpu":
        return
    bits = kernels.mantissa_bits(device)
    message = f"matrix products in fp32 keep {bits} of 23 mantissa bits"
    yield _check("tf32", (bits < 23) == case.tf32, message, case)
    if case.priority_stream:
        options: Any = torch.distributed.distributed_c10d._get_default_group()._get_backend(device)
        yield _check(
            "priority_stream",
            bool(options.options.is_high_priority_stream),
            "the priority of NCCL's stream was checked",
            case,
        )
    if case.power_cap_w:
        held_w = nvml.power_limits()[device.index or 0].now_w
        yield _check("power_cap_w", held_w == case.power_cap_w, f"power limit is {held_w} W", case)


def _check(name: str, ok: bool, seen: str, case: CaseSpec) -> Check:
    """Return the check that the setting ``name`` of the case took effect."""
    asked_for = getattr(case, name)
    return Check(name=f"took_effect.{name}", ok=ok, detail=f"{seen}; requested: {asked_for}")
