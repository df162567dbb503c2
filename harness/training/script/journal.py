"""Write a rank's journal of an interrupted training: a digest of its weights after every update.

The resumed training is compared with the journal of the interrupted one. A line is written as soon
as an update ends, so the journal of a killed rank contains all completed updates.
"""

import functools
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.optim import Optimizer

from harness.base.documents import to_doc
from harness.cases import Fault
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Break
from harness.record import Update
from harness.training.observe.intake import digest
from harness.training.rank.setup import Rank
from harness.training.rank.tasks.train import strike
from harness.training.script.observed import Observed

#: Calls whose time is recorded, because a script makes them before its first step. Each entry has
#: the module, the function, and the purpose of the call.
CALLS = (
    (dist, "init_process_group", "group"),
    (torch, "load", "load"),
    (dcp, "load", "load"),
    (torch, "save", "save"),
    (dcp, "save", "save"),
)


class Journal(Observed):
    """The observer that records every update. It calls ``over`` after the last requested one."""

    def __init__(self, task: Break, rank: Rank, over: Callable[["Journal"], None]) -> None:
        super().__init__()
        self.task = task
        self.rank = rank
        self._over = over
        self._file = rank.file("journal").open("w", encoding="utf-8")
        self._began_at = time.time()
        self._stepped_at = 0.0
        self._spent_s = dict.fromkeys(("group", "load", "save"), 0.0)
        for module, name, what in CALLS:
            setattr(module, name, self._timed(getattr(module, name), what))

    def restart(self) -> None:
        """Do nothing, because updates before ``measured`` are also part of a checkpoint."""

    def stepped(self, key: int, optimizer: Optimizer) -> None:
        super().stepped(key, optimizer)
        self._stepped_at = time.time()

    def mark(self) -> None:
        done = len(self.sentences.words)
        rows = [int(v) for row in self.rows.values() for v in row.of(done - 1, done).tolist()]
        (loss,) = self.losses(done - 1, done) if done else (float("nan"),)
        line = Update(
            at=self._stepped_at,
            began_at=self._began_at,
            state=digest(iter(self.parameters())),
            samples=f"{sum(rows) % 2**64:016x}",
            loss=float(loss),
            spent_s=dict(self._spent_s),
        )
        self._file.write(json.dumps(to_doc(line)) + "\n")
        self._file.flush()
        self.rank.beat(Phase.STEADY if done else Phase.WARMUP, done)
        is_struck = (self.rank.place.rank, done) == (self.task.rank, self.task.fault_step)
        if is_struck and self.task.fault is not Fault.NONE:
            strike(self.task.fault, self.rank)
        if done == self.task.steps:
            self._over(self)

    def _timed(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Wrap ``call`` so that its seconds are added to the entry ``what``."""

        @functools.wraps(call)
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                self._spent_s[what] += time.perf_counter() - began

        return timed
