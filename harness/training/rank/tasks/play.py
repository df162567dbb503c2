"""Task ``play``: train with checkpoints until the end or the next fault: how goodput is measured.

resume from the latest whole checkpoint -> steps; after every few of them a checkpoint in a
folder of its own, and then, at once, the name of that one -> a mark of each on rank 0
"""

import shutil
import time
from pathlib import Path

import torch

from harness.cases import Fault
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import LaunchSpec, Play
from harness.record import RankRecord, WhatRan
from harness.record.recovery import Mark
from harness.record.store import write_text
from harness.training.accelerator import Accelerator
from harness.training.context import load
from harness.training.observe import issued
from harness.training.observe.memory import Memory
from harness.training.rank.setup import Rank
from harness.training.rank.tasks import train
from harness.training.trainer import LocalTrainer

#: Steps whose batches are made: a long training has them again, so that it starts no later.
BATCHES = 24
#: Names the checkpoint that is whole.
LATEST = "latest"


def prepare(spec: LaunchSpec, _: Path) -> None:
    issued.enable(issued.LAST)
    Accelerator(torch.device(spec.case.device)).repeatable()
    load(spec.files)


def run(task: Play, rank: Rank) -> RankRecord:
    named = load(rank.spec.files)
    case = rank.spec.case
    memory = Memory(rank.accelerator)
    ctx = rank.context(named, case)
    trainer = named.build(case, ctx, case.seed)
    if not isinstance(trainer, LocalTrainer) or not trainer.resumable:
        raise ValueError("goodput cannot save the state of this strategy in a checkpoint")
    feed = named.feed(rank.source(named, ctx, BATCHES))
    rank.meet()
    folder = Path(task.folder)
    took = train.Took()
    done = 0
    with rank.file("marks").open("a", buffering=1) as marks:

        def mark(what: Mark) -> None:
            if ctx.rank == 0:
                marks.write(f"{what} {done} {time.time_ns()}\n")

        mark(Mark.READY)
        if (latest := folder / LATEST).is_file():
            done, _ = train.load_state(trainer, folder / latest.read_text())
        mark(Mark.LOADED)
        while done < task.steps:
            rank.beat(Phase.STEADY, done)
            if ctx.rank == task.rank and time.time() >= task.strike_at > 0:
                train.strike(Fault.KILL, rank)
            trainer.step(feed(done % BATCHES))
            rank.accelerator.synchronize()
            done += 1
            mark(Mark.STEP)
            if done % task.every == 0 and done < task.steps:
                train.save_state(trainer, folder / str(done), done, took)
                if ctx.rank == 0:
                    _name(folder, done)
                mark(Mark.SAVED)
    return rank.record(WhatRan(module=type(trainer).__name__), memory)


def _name(folder: Path, done: int) -> None:
    """Name the checkpoint that a training resumes from, and remove the one before."""
    before = (folder / LATEST).read_text() if (folder / LATEST).is_file() else ""
    write_text(folder / LATEST, str(done))
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
