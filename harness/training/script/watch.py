"""One rank's watch over a user's training: its steps, its window, and what it leaves as evidence.

sentences -> period known and warm-up over -> kept window -> all ranks meet -> record -> the end
"""

import math
from collections.abc import Callable
from time import perf_counter, time_ns
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Script
from harness.training.observe.intake import digest
from harness.training.observe.memory import Memory
from harness.training.observe.meter import Meter
from harness.training.rank.setup import Rank
from harness.training.script.hooks import Hooks
from harness.training.script.profile import Profile
from harness.training.script.region import region
from harness.training.script.samples import Rows, first_tensor
from harness.training.script.sentences import Sentences

#: So many sentences may pass before an optimizer that was made has stepped.
PATIENCE = 64
_LOSSES = 1024


class Watch:
    """Told by hooks what the training does; calls ``over`` when the window has been measured."""

    def __init__(self, task: Script, rank: Rank, over: Callable[["Watch"], None]) -> None:
        self.task, self.rank, self._over = task, rank, over
        self.hooks = Hooks(self)
        self.memory, self.meter = Memory(rank.accelerator), Meter(perf_counter)
        self.first = self.period = 0
        self.profile: Profile | None = None
        self._forget()

    def _forget(self) -> None:
        self.sentences = Sentences()
        self.marks_s: list[float] = []
        self.walls_ns: list[int] = []
        self.rss_bytes: list[int] = []
        self.numbers: list[int] = []  # of the last collective, at each mark
        self.reads: list[int] = []  # of single values, up to each mark
        self.events: list[torch.Event] = []
        self.rows: dict[int, Rows] = {}
        self.start, self.sharded, self.norm2 = "", False, 0.0
        self.dtype = ""
        self._losses: Tensor | None = None

    def restart(self) -> None:
        """Forget what was seen so far (``measured``)."""
        self.first = self.period = 0
        self._forget()
        self.hooks.forget()

    def install(self) -> None:
        self.hooks.install()

    # What hooks tell

    def passing(self) -> None:
        if self.sentences.passing():
            self._mark()

    def called(self, number: int, root: nn.Module, inputs: Tensor) -> None:
        self.rows.setdefault(number, Rows()).note(len(self.sentences.words), inputs)

    def returned(self, output: object) -> None:
        if not self.dtype and (found := first_tensor(output)) is not None:
            self.dtype = str(found.dtype).removeprefix("torch.")

    def enter_backward(self, losses: object) -> None:
        self.sentences.enter_backward()
        if isinstance(losses, Tensor) and losses.numel() == 1:
            self._note(losses.detach())

    def leave_backward(self) -> None:
        self.sentences.leave_backward()

    def stepping(self, number: int, optimizer: Optimizer) -> None:
        if not self.sentences.words:
            self._look_at_gradients(optimizer)

    def stepped(self, number: int) -> None:
        self.sentences.stepped(number)

    # The window

    def _mark(self) -> None:
        """A sentence begins, and the one before is over."""
        done = len(self.sentences.words)
        if not done:
            self.start = digest(iter(self.parameters()))
            self.sharded = any(hasattr(p, "placements") for p in self.parameters())
        self.numbers.append(collectives())
        self.reads.append(self.hooks.reads)
        self.rss_bytes.append(self.memory.now() if done % self.memory.every == 0 else 0)
        self.walls_ns.append(time_ns())
        for event in self.rank.accelerator.events(1):
            event.record()
            self.events.append(event)
        self.marks_s.append(perf_counter())
        kept = done - self.first if self.first else 0
        self.rank.beat(Phase.STEADY if self.first else Phase.WARMUP, done)
        if not self.first:
            self._settle(done)
            return
        if self.profile is not None and kept % self.period == 0:
            self.profile.step()
        if kept == (self.task.steps - self.task.cut) * self.period:
            self._over(self)

    def _settle(self, done: int) -> None:
        """Begin the kept window once the period is known and the warm-up is over."""
        known = len(self.hooks.optimizers) if done < PATIENCE else len(self._stepping_ones())
        found = self.sentences.period(known)
        if found is None or done < self.task.cut * found or done % found or region.awaited:
            return
        self.first, self.period = done, found
        self.hooks.settle()
        if self.task.profiled and self.profile is None:
            self.profile = Profile(self.task, self.rank)
        self.rank.accelerator.synchronize()
        self.memory.settle()
        self.meter.start()
        self.marks_s[-1] = perf_counter()

    def _stepping_ones(self) -> set[int]:
        return {number for word in self.sentences.words for number in word.optimizers}

    # Evidence

    def parameters(self) -> list[nn.Parameter]:
        """Those of all roots, each once."""
        found = {id(p): p for root in self.hooks.roots.values() for p in root.parameters()}
        return list(found.values())

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        """Their norm before the first step, squared; a shard's part where they are sharded."""
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    grad = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
                    self.norm2 += float(grad.detach().double().square().sum())

    def _note(self, loss: Tensor) -> None:
        """A sentence's losses, added up; in one tensor (see ``window.StepLog``)."""
        at = len(self.sentences.words)
        if self._losses is None:
            self._losses = torch.zeros(_LOSSES, dtype=torch.float64, device=loss.device)
        while at >= len(self._losses):
            self._losses = torch.cat([self._losses, torch.zeros_like(self._losses)])
        self._losses[at] += loss.reshape(())

    def end(self) -> None:
        """The kept window is over, now; ranks have met when this returns."""
        self.rank.accelerator.synchronize()
        self.marks_s[-1], self.walls_ns[-1] = perf_counter(), time_ns()
        self.meter.stop()
        self.rank.meet()
        self.grown = self.meter.grown()

    def edges(self) -> range:
        """Numbers of the sentences with which steps begin, and of the one after the last."""
        begin = self.first - self.task.cut * self.period
        return range(begin, begin + self.task.steps * self.period + 1, self.period)

    def losses(self) -> np.ndarray:
        """A loss for each step: what its backward passes began with, added up; NaN = none."""
        if self._losses is None:
            return np.full(self.task.steps, np.nan)
        sums = self._losses.cpu().numpy()
        return np.array([sums[i : i + self.period].sum() for i in self.edges()[:-1]])

    @property
    def grad_norm(self) -> float:
        """Of this rank's part of the gradients, before the first optimizer step."""
        return math.sqrt(self.norm2)


def collectives() -> int:
    """How many collectives this rank has issued to the default group so far."""
    group: Any = dist.group.WORLD if dist.is_initialized() else None
    return 0 if group is None else int(group._get_sequence_number_for_group())
