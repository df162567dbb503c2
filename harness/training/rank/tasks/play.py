"""Task ``play``: train with checkpoints until the end or the next fault, to measure goodput.

The training resumes from the latest complete checkpoint. After every few steps it writes a
checkpoint into a new folder, and then records that this folder is the latest one. Rank 0 writes a
mark with the time of each event.
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

#: Number of steps for which batches are made. A longer training repeats them, so that making
#: batches does not delay its start.
BATCHES = 24
#: The file that contains the name of the latest complete checkpoint.
LATEST = "latest"


#: This task needs the same preparation as the task ``train``.
prepare = train.prepare


def run(task: Play, rank: Rank) -> RankRecord:
    """Train to the last step, or until this rank is killed at the time of the fault."""
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
            """Write an event, the number of steps done and the time in ns, on rank 0 only."""
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
    """Record the checkpoint from which a training resumes, and remove the previous one."""
    before = (folder / LATEST).read_text(encoding="utf-8") if (folder / LATEST).is_file() else ""
    write_text(folder / LATEST, str(done))
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
