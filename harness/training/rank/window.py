"""Run the timed window of a training: a barrier, warm-up steps, then the steps that are kept.

All step times of the project are measured here. There is no barrier and no device synchronisation
between steps. On CUDA each step records an event, and the device is synchronised once at each end
of the kept window.
"""

import functools
import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep, time_ns  # imported before a user's file can replace them
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
    """An object whose ``step`` is called after each step of a window."""

    def step(self) -> None:
        """Record that a step has ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one rank over its kept window (the steps after the warm-up).

    ``window_s`` is the duration of the window in s. ``window_ns`` holds its beginning and end by
    the wall clock, in ns since the epoch. ``misses`` is the number of deadlines that a paced
    training missed. ``grown`` holds the growth of the operating system's counters in the window.
    ``counted`` is True if the rank's traffic can be counted at its sockets. ``shared`` names the
    writable shared memory that was mapped since the rank was set up.
    """

    samples: Samples
    window_s: float
    misses: int
    grown: MeterReading
    counted: bool
    shared: tuple[str, ...]
    window_ns: tuple[int, int]


#: Number of steps whose batches are made from the model's file after the window.
REMADE = 8


class StepLog:
    """Runs steps, and records when each ended, its loss and the memory in use.

    A timed step contains the training and this recording, and nothing else. ``marks_s[0]`` is the
    time of the start in s, and ``marks_s[i]`` the time after step i - 1. ``period_s`` paces
    simulated compute: steps end at multiples of this period (in s) after the start of the window,
    or after the start of the kept window once that has begun. ``misses`` counts the steps that
    ended after their deadline. ``behind`` is the number of steps that the training made before this
    window.
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
        # These are lists and not arrays. The code of an array would have to be loaded again in
        # every step, because the step itself fills the CPU's caches.
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
        """Begin the window, or the kept window, with step ``i``."""
        self.first = i
        self.marks_s[i] = perf_counter()
        if self.events:
            self.events[i].record()

    def run(self, i: int, feed: Feed, phase: Phase) -> None:
        """Run step ``i`` on a batch from ``feed``, and record its results."""
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
                with span("slot", Category.COMPUTE):  # the wait simulates compute
                    sleep(until_due_s)
            else:
                self.misses += 1
        if i % self.memory.every == 0:
            self.rss_bytes[i] = self.memory.now()
        if self.events:
            self.events[i + 1].record()
        self.marks_s[i + 1] = perf_counter()

    def _note(self, i: int, loss: torch.Tensor | None) -> None:
        """Record the loss of step ``i``; raise TypeError if it is not one of torch's tensors.

        On devices all losses are written to one tensor. A separate tensor for each step is small,
        but it would keep the allocator from reusing the memory around it (45 kB in each step of
        FSDP). On CPUs, where reading a loss does not wait for a device, losses are written to a
        list, which takes a third of the time. An object of a user's class is refused, because it
        could postpone the work of its step until it is read after the window.
        """
        if loss is None:
            return
        if not _of_torch(type(loss)):
            raise TypeError(f"step() returned a {type(loss).__name__}, not a torch.Tensor")
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
        """Return the losses of the first ``steps`` steps, NaN on ranks that do not compute one."""
        if self.losses is None:
            return np.full(steps, np.nan)
        noted = self.losses[:steps]
        return noted.cpu().numpy() if isinstance(noted, torch.Tensor) else np.array(noted)

    def samples(self, feed: Feed, made: Feed) -> Samples:
        """Return the recorded samples; on CUDA the step times come from the device's events.

        Each batch is made once more here, and its content is hashed. A sample depends only on its
        id, so these hashes must equal the hashes of the inputs that reached the model. A user's
        input could hand out other samples late in a run. The batches of some steps, which are drawn
        only now, therefore do not come from the input (``feed``) but from the model's file.
        """
        steps = range(len(self.sample_ids))
        drawn = set(random.SystemRandom().sample(steps, min(REMADE, len(steps))))
        batches = [(made if i in drawn else feed)(self.behind + i) for i in steps]
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
                    for tensor in every_row_hashed([batch.inputs for batch in batches])
                ]
            ),
        )


@functools.cache
def _of_torch(kind: type) -> bool:
    """Return whether a class belongs to torch and is found there under its stated name."""
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
    made: Feed | None = None,
) -> Measured:
    """Run and time the steps of a window, and return the measurements of the kept window.

    All ranks wait for each other before the first step, but not between steps. ``known`` names the
    shared memory that the rank had mapped before. ``observers`` are called after each step.
    ``behind`` is the number of steps that the training made before this window. ``made`` returns
    the batch of a step independently of the case's input.
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
    meet()  # after this barrier all sent bytes are acknowledged, so the sockets can be read
    grown = meter.grown()
    beat(Phase.FINISH, steps)
    window_s = float(end - log.marks_s[cut])
    return Measured(
        samples=log.samples(feed, made or feed),
        window_s=window_s,
        window_ns=(ended_ns - round(1e9 * window_s), ended_ns),
        misses=log.misses,
        grown=grown,
        counted=ctx.world_size > 1 and ctx.case.backend == "gloo" and ctx.case.communicate,
        shared=tuple(sorted(kernel_counters.uncounted(helpers_of(feed)) - known)),
    )
