"""Task ``play``: train with checkpoints until the end or the next fault: how goodput is measured.

resume from the latest whole checkpoint -> steps; after every few of them a checkpoint in a
folder of its own, and then, at once, the name of that one -> a mark of each on rank 0
"""

import shutil
import time
from pathlib import Path

from harness.cases import Fault
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Play
from harness.record import ExecutedModel, RankRecord
from harness.record.recovery import Mark
from harness.record.store import write_text
from harness.training.context import load
from harness.training.observe.memory import Memory
from harness.training.rank.setup import Rank
from harness.training.rank.tasks import train

#: Steps whose batches are made: a long training has them again, so that it starts no later.
BATCHES = 24
#: Names the checkpoint that is whole.
LATEST = "latest"


#: A training that is interrupted begins as one that is broken once.
prepare = train.prepare


def run(task: Play, rank: Rank) -> RankRecord:
    named = load(rank.spec.files)
    case = rank.spec.case
    memory = Memory(rank.accelerator)
    ctx = rank.context(named, case)
    trainer = train.resumable(named.build(case, ctx, case.seed), "goodput")
    feed = named.feed(rank.source(named, ctx, BATCHES))
    rank.meet()
    folder = Path(task.folder)
    took = train.Took()
    done = 0
    with rank.file("marks").open("a", buffering=1, encoding="utf-8") as marks:

        def mark(what: Mark) -> None:
            if ctx.rank == 0:
                marks.write(f"{what} {done} {time.time_ns()}\n")

        mark(Mark.READY)
        if (latest := folder / LATEST).is_file():
            done, _ = train.load_state(trainer, folder / latest.read_text(encoding="utf-8"))
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
    return rank.record(ExecutedModel(module=type(trainer).__name__), memory)


def _name(folder: Path, done: int) -> None:
    """Name the checkpoint that a training resumes from, and remove the one before."""
    before = (folder / LATEST).read_text(encoding="utf-8") if (folder / LATEST).is_file() else ""
    write_text(folder / LATEST, str(done))
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
