"""The timed window: warm-up, one barrier, then steps that run free. The only place that times.

No per-step barrier and no per-step device synchronisation: on CUDA each step records an event,
and the device is synchronised once at either end of the kept window.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep, time_ns  # before any file of a user's is imported
from typing import Protocol

import numpy as np
import torch

from harness.cases import Window
from harness.launch.wire.beats import Phase
from harness.record import Category
from harness.record.store import Samples
from harness.training.accelerator import Accelerator
from harness.training.context import RankContext, Trainer
from harness.training.feeds import Feed, helpers_of
from harness.training.observe import kernel_counters
from harness.training.observe.intake import Intake, every_row_hashed
from harness.training.observe.kernel_counters import Meter, MeterReading
from harness.training.observe.memory import Memory
from harness.training.observe.spans import span


class StepObserver(Protocol):
    """Who is called after each step of a window."""

    def step(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one rank over its kept window (the steps after the cut).

    ``grown`` is what the kernel counted in it, ``counted`` whether its sockets carry the traffic,
    ``shared`` writable memory that was mapped since the rank was set up. ``window_ns`` is when it
    began and ended, by the wall clock.
    """

    samples: Samples
    window_s: float
    misses: int
    grown: MeterReading
    counted: bool
    shared: tuple[str, ...]
    window_ns: tuple[int, int]


class StepLog:
    """Runs steps and notes when each ended, its loss and the memory: all that a step is charged.

    ``marks_s[i]`` is the time after step i, ``marks_s[0]`` the start. ``period_s`` paces a
    scheduled stand-in: steps end a period apart from the start of the window, and again from the
    start of what is kept of it; a deadline already over is a miss. The training has made
    ``behind`` steps before.
    """

    def __init__(  # noqa: PLR0913  (what the one window needs)
        self,
        trainer: Trainer,
        steps: int,
        *,
        memory: Memory,
        beat: Callable[[Phase, int], None],
        period_s: float | None,
        events: list[torch.Event],
        intake: Intake,
        behind: int = 0,
    ) -> None:
        self.intake = intake
        self.behind = behind
        self.trainer = trainer
        self.memory = memory
        self.beat = beat
        self.period_s = period_s
        # Lists: an array's code would be another thing that a step leaves no room for in caches.
        self.marks_s = [0.0] * (steps + 1)
        self.rss_bytes = [0] * steps
        self.losses: torch.Tensor | list[float] | None = None
        self.steps = steps
        self.sample_ids: list[torch.Tensor] = []
        self.events = events
        self.misses = 0
        self.first = 0
        self._step_span = span("step")
        self._batch_span = span("batch", Category.DATA)

    def start(self, i: int) -> None:
        """Before step i: the window, or what is kept of it, begins now."""
        self.first = i
        self.marks_s[i] = perf_counter()
        if self.events:
            self.events[i].record()

    def run(self, i: int, feed: Feed, phase: Phase) -> None:
        self.beat(phase, i)
        self._step_span.payload = self._batch_span.payload = i
        with self._step_span:
            with self._batch_span:
                batch = feed(self.behind + i)
            self.sample_ids.append(batch.ids)
            self._note(i, self.trainer.step(batch))
            self.intake.end_step()
        if self.period_s is not None:
            due = self.marks_s[self.first] + (i + 1 - self.first) * self.period_s
            until_due_s = due - perf_counter()
            if until_due_s > 0:
                with span("slot", Category.COMPUTE):  # stands in for it
                    sleep(until_due_s)
            else:
                self.misses += 1
        if i % self.memory.every == 0:
            self.rss_bytes[i] = self.memory.now()
        if self.events:
            self.events[i + 1].record()
        self.marks_s[i + 1] = perf_counter()

    def _note(self, i: int, loss: torch.Tensor | None) -> None:
        """Into one tensor: one of its own for each step is small, but keeps the heap around it
        from being used again (45 kB a step of FSDP). On cores, where nothing has to be waited for,
        into a list: that takes a third of the time. An object of a user's own could be read when
        the window is over, and so could its step end then.
        """
        if loss is None:
            return
        if not _of_torch(type(loss)):
            raise TypeError(f"step() returned a {type(loss).__name__}, not a tensor of torch")
        if self.losses is None:
            self.losses = (
                [math.nan] * self.steps
                if loss.is_cpu
                else torch.full((self.steps,), torch.nan, dtype=torch.float64, device=loss.device)
            )
        if isinstance(self.losses, list):
            self.losses[i] = loss.item()
        else:
            self.losses[i] = loss.detach()

    def _losses(self, steps: int) -> np.ndarray:
        """NaN on ranks that have none."""
        if self.losses is None:
            return np.full(steps, np.nan)
        noted = self.losses[:steps]
        return noted.cpu().numpy() if isinstance(noted, torch.Tensor) else np.array(noted)

    def samples(self, feed: Feed) -> Samples:
        """The samples that were noted; on CUDA the steps' times are the device's own.

        The content of what was handed out is looked at once more: a sample depends on its id only.
        """
        steps = range(len(self.sample_ids))
        marks_s = np.array(self.marks_s)
        step_s = np.diff(marks_s)
        if self.events:
            pairs = itertools.pairwise(self.events)
            step_s = np.array([a.elapsed_time(b) / 1e3 for a, b in pairs])
        return Samples(
            marks_s=marks_s - marks_s[0],
            loss=self._losses(len(self.sample_ids)),
            sample_ids=np.stack([ids.cpu().numpy() for ids in self.sample_ids]),
            rss_bytes=np.array(self.rss_bytes, dtype=np.int64),
            step_s=step_s,
            seen=self.intake.rows(),
            content=np.stack(
                [
                    tensor.cpu().numpy()
                    for tensor in every_row_hashed([feed(self.behind + i).inputs for i in steps])
                ]
            ),
        )


@functools.cache
def _of_torch(kind: type) -> bool:
    """Whether a class is torch's own: torch has it under the name that it gives itself."""
    module = sys.modules.get(kind.__module__)
    torchs = kind.__module__.partition(".")[0] == "torch"
    return torchs and getattr(module, kind.__qualname__, None) is kind


def measure(  # noqa: PLR0913  (what the one window needs)
    trainer: Trainer,
    feed: Feed,
    window: Window,
    *,
    ctx: RankContext,
    accelerator: Accelerator,
    memory: Memory,
    beat: Callable[[Phase, int], None],
    meet: Callable[[], None],
    period_s: float | None,
    intake: Intake,
    known: frozenset[str],
    observers: Sequence[StepObserver] = (),
    behind: int = 0,
) -> Measured:
    """Run the window's steps: all ranks meet before the first, and not between them.

    ``known`` is the shared memory that a rank has anyhow. ``observers`` are called after each
    step. ``behind`` is the number of steps that the training has made before.
    """
    steps, cut = window.steps, window.cut
    memory.spread(steps - cut)
    log = StepLog(
        trainer,
        steps,
        memory=memory,
        beat=beat,
        period_s=period_s,
        intake=intake,
        behind=behind,
        events=accelerator.events(steps + 1),
    )
    meter = Meter(perf_counter, lambda: helpers_of(feed))
    settle = accelerator.synchronize
    settle()
    meet()
    log.start(0)
    for i in range(steps):
        if i == cut:
            settle()
            memory.settle()
            meter.start()
            log.start(i)
        log.run(i, feed, Phase.WARMUP if i < cut else Phase.STEADY)
        for observer in observers:
            observer.step()
    settle()
    log.marks_s[steps] = end = perf_counter()
    meter.stop()
    ended_ns = time_ns()
    meet()  # everything sent is acknowledged before the sockets are read
    grown = meter.grown()
    beat(Phase.FINISH, steps)
    window_s = float(end - log.marks_s[cut])
    return Measured(
        samples=log.samples(feed),
        window_s=window_s,
        window_ns=(ended_ns - round(1e9 * window_s), ended_ns),
        misses=log.misses,
        grown=grown,
        counted=ctx.world_size > 1 and ctx.case.backend == "gloo" and ctx.case.communicate,
        shared=tuple(sorted(kernel_counters.shared_memory(helpers_of(feed)) - known)),
    )
