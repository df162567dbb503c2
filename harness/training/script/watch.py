"""Watch one rank of a user's training: its steps, its window, and the evidence that it writes.

1. In the warm-up, update cycles are recorded until the period of a step is known.
2. The kept window is timed. At its end all ranks meet.
3. The FLOPs of one more step are counted.
4. The rank writes its record, and its process ends.

An update cycle (``sentence`` in names) is defined in ``sentences.py``.
"""

import math
from collections.abc import Callable
from time import perf_counter, time_ns

import numpy as np
import torch

from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Script
from harness.record.anatomy import CalledCollective
from harness.training.observe.kernel_counters import Meter
from harness.training.observe.memory import Memory
from harness.training.rank.setup import Rank
from harness.training.script import shards
from harness.training.script.flops import Counted, compiled
from harness.training.script.observed import Digests, Observed
from harness.training.script.profile import Profile
from harness.training.script.region import region

#: Number of update cycles after which an optimizer is ignored if it was made but never stepped.
PATIENCE = 64
#: In the kept window, memory is read and samples are hashed in only one of this many steps. Samples
#: of the other steps are only counted.
LOOKED = 32


class Watch(Observed):
    """The observer of one timed training. The hooks call it, and it calls ``over`` at the end."""

    def __init__(self, task: Script, rank: Rank, over: Callable[["Watch"], None]) -> None:
        self.task = task
        self.rank = rank
        self._over = over
        self.memory = Memory(rank.accelerator)
        self.meter = Meter(perf_counter)
        self.first = self.period = 0
        self._phase = Phase.WARMUP
        self.profile: Profile | None = None
        self.work: Counted | None = None
        self.measured = False
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self.marks_s: list[float] = []
        self.walls_ns: list[int] = []
        self.rss_bytes: list[int] = []
        # For each call of ``mark`` in the warm-up, the number of reads of single values so far.
        self.reads: list[int] = []
        # For each call of ``mark``, the number of passes so far that train nothing.
        self.evaluations: list[int] = []
        # For each call of ``mark``, the seconds so far in the parts of a step, and the number of
        # passes over loaders so far.
        self.spent: list[tuple[float, ...]] = []
        self.events: list[torch.Event] = []
        self.began = Digests()  # digests of parameters before the first step
        # the same for the stepped tensors, if all of them belong to no root
        self.began_alone = Digests()
        self.sharded = False
        self.calls: dict[str, CalledCollective] = {}  # for each step, after the window

    def restart(self) -> None:
        """Forget all observations, because ``measured`` or ``measure_steps`` was entered."""
        self.first = self.period = 0
        self._phase = Phase.WARMUP
        super().restart()

    def mark(self) -> None:
        """Record the time at the start of an update cycle, which is the end of the previous one."""
        done = len(self.sentences.words)
        if not done:
            self._look_at_start()
            self.sharded = shards.divided(list(self.hooks.roots.values()))
        if not self.first:
            self.reads.append(self.hooks.reads)
        self.evaluations.append(self.hooks.evaluations)
        calls = self.hooks.calls
        self.spent.append(
            (
                self.batches_s, self.forward_s, self.backward_s, self.optimizer_s,
                calls.saving_s, calls.garbage_s, calls.waiting_s, self.passes_begun,
            )
        )  # fmt: skip
        self.rss_bytes.append(self.memory.now() if done % LOOKED == 0 else 0)
        self.walls_ns.append(time_ns())
        for event in self.rank.accelerator.events(1):
            event.record(torch.accelerator.current_stream(self.rank.accelerator.device))
            self.events.append(event)
        self.marks_s.append(perf_counter())
        num_kept = done - self.first if self.first else 0
        if not self.first or num_kept % self.period == 0:
            self.rank.beat(self._phase, done)
        if not self.first:
            self._settle(done)
            return
        if self.profile is not None and num_kept % self.period == 0:
            self.profile.step()
        window = (self.task.steps - self.task.cut) * self.period
        if num_kept == window:
            self.end()
            self.measured = True
            if self.profile is not None or compiled():  # counting would compile the model again
                self.finish()
                return
            self.work = Counted(self.hooks.trains, self.hooks.updates)
            self.work.begin()
        elif self.measured and num_kept == window + self.period:
            self.finish(whole=True)

    def enter_backward(self, losses: object, *, again: bool) -> None:
        if not self.sentences.words and not self.sentences.backwards and not self.sharded:
            # Compute the digests again here. The first ones may come from a trial forward pass
            # before DDP copied the weights of rank 0.
            self._look_at_start()
        super().enter_backward(losses, again=again)

    def _look_at_start(self) -> None:
        shards.reshard(list(self.hooks.roots.values()))
        self.began = self.bits()
        self.began_alone = self.bits_alone()

    def finish(self, *, whole: bool = False) -> None:
        """End the watch. FLOPs of the step after the window are used only if it is complete."""
        if self.work is not None:
            self.work.end()
        if not whole:
            self.work = None
        self._over(self)

    def looks(self) -> bool:
        """Return whether samples of this update cycle are hashed.

        They are hashed in every warm-up step, in one of ``LOOKED`` steps of the kept window, and in
        the last step of that window.
        """
        step = (len(self.sentences.words) - self.first) // self.period if self.first else 0
        return step % LOOKED == 0 or step == self.task.steps - self.task.cut - 1

    def _settle(self, done: int) -> None:
        """Begin the kept window if the period is known and the warm-up has ended."""
        known = len(self.hooks.optimizers) if done < PATIENCE else self._num_stepping()
        period = self.sentences.period(known)
        if period is None or done < self.task.cut * period or done % period or region.awaited:
            return
        self.first = done
        self.period = period
        self._phase = Phase.STEADY
        self.hooks.settle()
        if self.task.profiled and self.profile is None:
            self.profile = Profile(self.task, self.rank)
        self.rank.accelerator.synchronize()
        self.memory.settle()
        self.hooks.calls.reset()
        self.meter.start()
        self.marks_s[-1] = perf_counter()

    def _num_stepping(self) -> int:
        return len({key for word in self.sentences.words for key in word.optimizers})

    def end(self) -> None:
        """End the kept window, and wait until all ranks have reached this point."""
        self.rank.accelerator.synchronize()
        self.marks_s[-1] = perf_counter()
        self.walls_ns[-1] = time_ns()
        self.meter.stop()
        self.calls = self.hooks.calls.of_a_step(self.task.steps - self.task.cut)
        # this rank now waits for the other ranks
        self.rank.beat(Phase.FINISH, len(self.sentences.words))
        self.rank.meet()
        self.rank.beat(Phase.STEADY, len(self.sentences.words))
        self.grown = self.meter.grown()

    def edges(self) -> range:
        """Return the number of the first update cycle of each step.

        The last number is that of the cycle after the last step.
        """
        begin = self.first - self.task.cut * self.period
        return range(begin, begin + self.task.steps * self.period + 1, self.period)

    def loss_of_steps(self) -> np.ndarray:
        """Return, for each step, the sum of the losses with which its backward passes began.

        The sum is NaN if there is no loss.
        """
        edges = self.edges()
        sums: np.ndarray = self.losses(edges[0], edges[-1]).reshape(-1, self.period).sum(axis=1)
        return sums

    @property
    def grad_norm(self) -> float:
        """Return the norm of this rank's part of the gradients before the first optimizer step."""
        return math.sqrt(self.norm2)
