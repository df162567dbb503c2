"""Task ``timed``: train, and time every step; with a profiler where steps are to be traced."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from harness.cases import Compiled, Window
from harness.launch.wire.messages import LaunchSpec, Timed
from harness.record import RankRecord
from harness.training.context import load
from harness.training.feeds import took
from harness.training.observe import issued, loops
from harness.training.observe.clock import Clock
from harness.training.observe.compiling import Compilations
from harness.training.observe.intake import Intake, digest
from harness.training.observe.memory import Memory
from harness.training.observe.outline import Outline
from harness.training.observe.profiler import Profiler
from harness.training.parallel.experts import Routing, routings
from harness.training.rank.setup import Rank
from harness.training.rank.window import measure


def prepare(spec: LaunchSpec, _: Path) -> None:
    """Import what is trained; of its collectives only the last ones are kept, as evidence."""
    issued.enable(issued.LAST)
    if isinstance(spec.task, Timed) and spec.task.profiled:
        loops.follow()
    load(spec.files)


def run(task: Timed, rank: Rank) -> RankRecord:
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
        intake.watch(model)
        counted.update(routings(model))

    trainer = loaded.build(case, ctx, case.seed, watch)
    rank.lap("model")
    feed = loaded.feed(rank.source(loaded, ctx, task.steps, intake.pool))
    period = getattr(loaded.model, "period_s", None)
    period_s = None if period is None else period(loaded.size(case), case, task.draw)
    rank.lap("data")
    window = Window(steps=task.steps, cut=task.cut, profiled=task.profiled, pairs=task.pairs)
    profiler: Profiler | Outline | None = None
    clock = None
    if task.profiled:
        clock = Clock()
        if task.pairs:
            profiler = Outline(window, ctx.rank, ctx.world_size)
        else:
            memory_file = rank.file("memory.pickle")
            profiler = Profiler(task.steps, task.profiled, rank.accelerator, memory_file)
        clock.handshake()
    measured = measure(
        trainer,
        feed,
        window,
        ctx=ctx,
        accelerator=rank.accelerator,
        memory=memory,
        beat=rank.beat,
        meet=rank.meet,
        period_s=period_s,
        intake=intake,
        known=rank.shared,
        profiler=profiler,
    )
    more: dict[str, Any] = dict(planted_s=period_s, part=ctx.part)
    agree = loaded.supports.replicas and not loaded.supports.beside and case.communicate
    if agree and ctx.mesh.uncut:  # else parameters would have to be gathered
        more["replica"] = digest(parameter for _, parameter in trainer.parameters())
    routed = {name: inquiry.noted for name, inquiry in counted.items()}
    more["routed"] = {name: seen for name, seen in routed.items() if any(seen.asked)} or None
    if profiler is not None and clock is not None:
        profiler.stop()
        clock.handshake()
        more["trace_sha256"] = profiler.export(rank.out, ctx.rank)
        more |= dict(clock_offset_ns=clock.offset_ns, clock_half_ns=clock.half_width_ns)
    ran = replace(trainer.ran(), fed=took(feed))
    if case.compiled is not Compiled.NO:
        again = compilations.within(measured.window_ns)
        ran = replace(ran, compile_s=compilations.total_s, recompiled=again)
    return rank.record(ran, memory, measured, **more)
