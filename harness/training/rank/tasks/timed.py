"""Task ``timed``: train, and time every step, with a profiler if steps are to be traced.

The task may add profiled steps after the timed window. They continue the same training, and have a
separate record.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from harness.base.documents import to_doc
from harness.cases import Compiled, Window
from harness.launch.wire.messages import BEHIND, LaunchSpec, Timed
from harness.record import RankRecord
from harness.record.store import write_text
from harness.training.context import Loaded, RankContext, Trainer, load
from harness.training.feeds import Feed, took
from harness.training.observe import collectives, threads
from harness.training.observe.clock import Clock
from harness.training.observe.compiling import Compilations
from harness.training.observe.intake import Intake, digest
from harness.training.observe.memory import Memory
from harness.training.observe.profiling import Allocations, Outline, Profiler
from harness.training.parallel.experts import Routing, routings
from harness.training.rank.afterwards import first_batch, probe
from harness.training.rank.setup import Rank
from harness.training.rank.window import StepObserver, measure


def prepare(spec: LaunchSpec, _: Path) -> None:
    """Import the case's files, and switch on what this task needs.

    The flight recorder keeps only the last collectives, as evidence in case the launch fails.
    """
    collectives.enable(collectives.LAST)
    if isinstance(spec.task, Timed) and (spec.task.profiled or spec.task.behind):
        threads.follow()
    load(spec.files)


@dataclass(frozen=True, kw_only=True)
class _Training:
    """A training and its observers.

    ``period_s`` is the period of the steps in s if compute is simulated on a schedule, else None.
    ``made`` returns the batch of a step as the model's file makes it, and not the input's file.
    ``counted`` maps layers with experts to the observers of their routing.
    """

    loaded: Loaded
    ctx: RankContext
    trainer: Trainer
    feed: Feed
    made: Feed
    memory: Memory
    intake: Intake
    compilations: Compilations
    period_s: float | None
    counted: Mapping[str, Routing] = field(default_factory=dict)


def run(task: Timed, rank: Rank) -> RankRecord:
    """Measure the timed window, and then profile the steps after it, if the task has any."""
    training = _built(task, rank)
    record = _window(task, rank, training, 0)
    if task.behind is not None:
        # The record is written first, so that it is kept if the profiled steps fail.
        write_text(rank.file("json"), json.dumps(to_doc(record)))
        training.intake.restart()
        apart = replace(rank, prefix=BEHIND)
        profile = _window(task.behind, apart, training, task.steps)
        write_text(apart.file("json"), json.dumps(to_doc(profile)))
    if training.loaded.ships_all:
        return record
    settle = rank.accelerator.synchronize
    step = lambda: training.trainer.step(training.feed(0))  # noqa: E731
    work = lambda: training.trainer.step(first_batch(training.loaded, training.ctx))  # noqa: E731
    probed = probe(step, work, rank.meet, settle)
    return replace(record, probe=probed)


def _built(task: Timed, rank: Rank) -> _Training:
    """Build everything that is needed before the first step."""
    loaded = load(rank.spec.files)
    case = rank.spec.case
    memory = Memory(rank.accelerator)
    ctx = rank.context(loaded, case)
    intake = Intake()
    compilations = Compilations()
    rank.slow_down(loaded)
    if case.compiled is not Compiled.NO:
        compilations.watch()
    counted: dict[str, Routing] = {}

    def watch(model: nn.Sequential) -> None:
        """Add observers to the plain model before its strategy wraps it."""
        intake.watch(model)
        counted.update(routings(model))

    trainer = loaded.build(case, ctx, case.seed, watch)
    rank.lap("model")
    num_steps = task.steps + (task.behind.steps if task.behind else 0)
    source = rank.source(loaded, ctx, num_steps, intake.pool)
    feed = loaded.feed(source)
    period = getattr(loaded.model, "period_s", None)
    period_s = None if period is None else period(loaded.size(case), case, task.draw)
    rank.lap("data")
    return _Training(
        loaded=loaded,
        ctx=ctx,
        trainer=trainer,
        feed=feed,
        made=source.make,
        memory=memory,
        intake=intake,
        compilations=compilations,
        period_s=period_s,
        counted=counted,
    )


def _window(task: Timed, rank: Rank, training: _Training, behind: int) -> RankRecord:
    """Run one window of a training, after ``behind`` earlier steps, and return its record."""
    ctx = training.ctx
    case = rank.spec.case
    window = Window(steps=task.steps, cut=task.cut, profiled=task.profiled, pairs=task.pairs)
    observers: list[StepObserver] = []
    profiler: Profiler | Outline | None = None
    clock = None
    if not behind and (task.behind or (task.profiled and not task.pairs)):
        observers.append(Allocations(rank.accelerator, rank.file("memory.pickle")))
    if task.profiled:
        clock = Clock()
        profiler = (
            Outline(window, ctx.rank, ctx.world_size)
            if task.pairs
            else Profiler(task.steps, task.profiled, rank.accelerator)
        )
        observers.append(profiler)
        clock.handshake()
    measured = measure(
        training.trainer,
        training.feed,
        window,
        ctx=ctx,
        accelerator=rank.accelerator,
        memory=training.memory,
        beat=rank.beat,
        meet=rank.meet,
        period_s=training.period_s,
        intake=training.intake,
        known=rank.shared,
        observers=observers,
        behind=behind,
        made=training.made,
    )
    more = _seen(training)
    if profiler is not None and clock is not None:
        profiler.stop()
        clock.handshake()
        more["trace_sha256"] = profiler.export(rank.file)
        more |= dict(clock_offset_ns=clock.offset_ns, clock_half_ns=clock.half_width_ns)
    ran = replace(training.trainer.ran(), fed=took(training.feed))
    if case.compiled is not Compiled.NO:
        again = training.compilations.within(measured.window_ns)
        ran = replace(ran, compile_s=training.compilations.total_s, recompiled=again)
    return rank.record(ran, training.memory, measured, **more)


def _seen(training: _Training) -> dict[str, Any]:
    """Return the fields of the record that cannot be computed from the samples of the window."""
    loaded, ctx = training.loaded, training.ctx
    seen: dict[str, Any] = dict(planted_s=training.period_s, part=ctx.part)
    agree = loaded.supports.replicas and not loaded.supports.beside and ctx.case.communicate
    if agree and ctx.mesh.uncut:  # sharded parameters would have to be gathered first
        seen["replica"] = digest(parameter for _, parameter in training.trainer.parameters())
    routed = {name: inquiry.noted for name, inquiry in training.counted.items()}
    seen["routed"] = {name: noted for name, noted in routed.items() if any(noted.asked)} or None
    return seen
