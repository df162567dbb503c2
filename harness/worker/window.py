"""The timed window: warm-up, one barrier, then steps that run free. The only place that times.

No per-step barrier and no per-step device synchronisation: on CUDA each step records an event,
and the device is synchronised once at either end of the kept window.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from harness import machine
from harness.beat import Phase
from harness.capture import sockets
from harness.capture.memory import Memory
from harness.capture.spans import span
from harness.record import Samples
from harness.worker.context import RankContext, Trainer
from harness.worker.data import Batch


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one rank measured over its kept window (the steps after the cut)."""

    samples: Samples
    window_s: float
    cpu_s: float
    busy_s: float | None
    wire: sockets.Wire | None
    misses: int


def measure(
    trainer: Trainer,
    batches: list[Batch],
    *,
    ctx: RankContext,
    cut: int,
    memory: Memory,
    beat: Callable[[Phase, int], None],
    period_s: float | None,
) -> Timed:
    """Run all batches; ``marks_s[i]`` is the time after step i, ``marks_s[0]`` the barrier.

    ``period_s`` paces a scheduled stand-in: step i ends at window start + (i + 1) x period, and
    every deadline that was already over is a miss.
    """
    cuda = ctx.device.type == "cuda"
    steps = len(batches)
    marks = np.zeros(steps + 1)
    rss = np.zeros(steps, dtype=np.int64)
    losses: list[torch.Tensor | None] = []
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)] if cuda else []
    misses, cpu_before, wire_before = 0, 0.0, None
    cores, busy_before = os.sched_getaffinity(0), None

    def settle() -> None:
        if cuda:
            torch.cuda.synchronize(ctx.device)

    settle()
    if ctx.world_size > 1:
        dist.barrier()
    marks[0] = start = time.perf_counter()
    if cuda:
        events[0].record()
    for i, batch in enumerate(batches):
        if i == cut:
            settle()
            memory.settle()
            busy_before = machine.busy_s(cores)
            wire_before, cpu_before = sockets.read(), time.process_time()
            marks[i] = time.perf_counter()
        beat(Phase.WARMUP if i < cut else Phase.STEADY, i)
        with span(f"step {i}"):
            losses.append(trainer.step(batch))
        if period_s is not None:
            deadline = start + (i + 1) * period_s
            left = deadline - time.perf_counter()
            if left > 0:
                time.sleep(left)
            else:
                misses += 1
        rss[i] = memory.now()
        if cuda:
            events[i + 1].record()
        marks[i + 1] = time.perf_counter()
    settle()
    marks[steps] = end = time.perf_counter()
    cpu_s = time.process_time() - cpu_before
    busy_after = machine.busy_s(cores)
    if ctx.world_size > 1:
        dist.barrier()  # everything sent is acknowledged before the sockets are read
    wire_after = sockets.read()
    beat(Phase.FINISH, steps)
    values = [float("nan") if loss is None else float(loss) for loss in losses]
    step_s = np.diff(marks)
    if cuda:
        step_s = np.array([a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)])
    counted = ctx.world_size > 1 and ctx.case.backend == "gloo"
    wire = None
    if counted and wire_before is not None and wire_after is not None:
        wire = wire_after.since(wire_before)
    return Timed(
        samples=Samples(
            marks_s=marks - start,
            loss=np.array(values),
            sample_ids=np.stack([b.ids.cpu().numpy() for b in batches]),
            rss_bytes=rss,
            step_s=step_s,
        ),
        window_s=float(end - marks[cut]),
        cpu_s=cpu_s,
        busy_s=None if busy_before is None or busy_after is None else busy_after - busy_before,
        wire=wire,
        misses=misses,
    )
