"""Task ``train``: save a checkpoint, break on purpose, go on: how recovery is measured."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from harness.cases import Fault
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import LaunchSpec, Train
from harness.record import Category, RankRestart
from harness.record.store import write_text
from harness.training.accelerator import Accelerator
from harness.training.context import Trainer, load
from harness.training.observe import collectives, intake
from harness.training.observe.spans import span
from harness.training.rank.setup import Rank
from harness.training.trainer import LocalTrainer

#: How large a checkpoint's files were when it was whole.
SIZES = "sizes.json"


@dataclass
class Took:
    """The duration of each part, s; ``first_step_at`` is on the clock of the machine."""

    load_s: float = 0.0
    save_s: float = 0.0
    stall_s: float = 0.0
    first_step_at: float = 0.0
    written: Event = field(default_factory=Event)


def prepare(spec: LaunchSpec, _: Path) -> None:
    """Import what is trained. Training that goes on is compared to the bit: so it is repeatable."""
    collectives.enable(collectives.LAST)
    Accelerator(torch.device(spec.case.device)).repeatable()
    load(spec.files)


def run(task: Train, rank: Rank) -> RankRestart:
    """All steps, or those after the checkpoint; saves on the way, breaks where it is told to."""
    named = load(rank.spec.files)
    case = rank.spec.case
    ctx = rank.context(named, case)
    trainer = resumable(named.build(case, ctx, case.seed), "recover")
    feed = named.feed(rank.source(named, ctx, task.steps))
    rank.lap("model")
    took = Took()
    first = 0
    loaded = ""
    losses: list[float] = []

    def looked_at() -> str:
        return digest(trainer, lambda: rank.beat(Phase.STEADY, first + len(losses)))

    folder = Path(task.folder)
    if task.resume:
        first, took.load_s = load_state(trainer, folder)
        loaded = looked_at()
    pending: Any = None
    saved = ""
    # Saving goes on behind the next steps: it must not meet their collectives in one group.
    aside = dist.new_group(backend="gloo") if task.asynchronous else None
    for step in range(first, task.steps):
        rank.beat(Phase.STEADY, step)
        if task.fault is not Fault.NONE and (ctx.rank, step) == (task.rank, task.fault_step):
            if pending is not None:  # what is measured goes on from a whole checkpoint
                pending.result()
            note_sizes(folder)
            strike(task.fault, rank)
        loss = trainer.step(feed(step))
        losses.append(float("nan") if loss is None else float(loss))
        if step == first:
            took.first_step_at = time.time()
        if step + 1 == task.save_after:
            saved = looked_at()
            pending = save_state(trainer, folder, step + 1, took, aside)
    if pending is not None:
        pending.result()
        took.written.wait()
    files = folder.glob("*.distcp")
    return RankRestart(
        rank=ctx.rank,
        first_step=first,
        losses=tuple(losses),
        saved=saved,
        loaded=loaded,
        last=looked_at(),
        load_s=took.load_s,
        save_s=took.save_s,
        stall_s=took.stall_s,
        bytes=sum(path.stat().st_size for path in files) if ctx.rank == 0 else 0,
        first_step_at=took.first_step_at,
        phases_s=rank.lap.seconds,
    )


def resumable(trainer: Trainer, verb: str) -> LocalTrainer:
    """The trainer; ValueError where a checkpoint does not hold all of its state."""
    if not isinstance(trainer, LocalTrainer) or not trainer.resumable:
        raise ValueError(f"{verb} cannot save the state of this strategy in a checkpoint")
    return trainer


def save_state(
    trainer: LocalTrainer,
    folder: Path,
    step: int,
    took: Took,
    aside: dist.ProcessGroup | None = None,
) -> Any:
    """Save all; the future of what goes on behind the next steps, or None."""
    with span("checkpoint", Category.CHECKPOINT, step):
        began = time.perf_counter()
        if of_rank := trainer.own_state():
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(of_rank, _own(folder, trainer))
        model, optimizer = get_state_dict(trainer.module, trainer.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": step}
        if aside is not None:
            pending: Any = dcp.async_save(state, checkpoint_id=folder, process_group=aside)
        else:
            dcp.save(state, checkpoint_id=folder)
            pending = None
        took.stall_s = took.save_s = time.perf_counter() - began

    def done(_: Any) -> None:
        took.save_s = time.perf_counter() - began
        took.written.set()

    if pending is not None:
        pending.add_done_callback(done)
    return pending


def _own(folder: Path, trainer: LocalTrainer) -> Path:
    """Where a rank keeps what no other has."""
    return folder / f"own{trainer.ctx.rank}.pt"


def load_state(trainer: LocalTrainer, folder: Path) -> tuple[int, float]:
    """The step to go on with, and how long loading took."""
    began = time.perf_counter()
    model, optimizer = get_state_dict(trainer.module, trainer.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
    try:
        dcp.load(state, checkpoint_id=folder)
    except CheckpointException as error:
        raise ValueError(_damage(folder, error)) from None
    set_state_dict(
        trainer.module,
        trainer.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    if (state_file := _own(folder, trainer)).is_file():  # of a rank that was not there it has none
        trainer.remember(torch.load(state_file, weights_only=True))
    return int(state["step"]), time.perf_counter() - began


def _damage(folder: Path, error: CheckpointException) -> str:
    """Which file of a checkpoint is not what was written, and what the library says of it."""
    errors = [wrapped[0] for wrapped in error.failures.values()]
    reason = f"{type(errors[0]).__name__}: {errors[0]}" if errors else str(error)
    sizes = (
        json.loads((folder / SIZES).read_text(encoding="utf-8"))
        if (folder / SIZES).is_file()
        else {}
    )
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"the checkpoint {folder} is damaged: {name} is missing ({reason})"
        if path.stat().st_size != size:
            part = f"{path.stat().st_size} of {size} bytes"
            return f"the checkpoint {folder} is damaged: {name} has {part} ({reason})"
    return f"the checkpoint {folder} cannot be loaded: {reason}"


def note_sizes(folder: Path) -> None:
    """Notes the size of a checkpoint's files, so that a damaged one is named."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name != SIZES]
    write_text(
        folder / SIZES, json.dumps({path.name: path.stat().st_size for path in sorted(files)})
    )


def digest(trainer: LocalTrainer, beat: Callable[[], None]) -> str:
    """The digest of all that is saved, whole and in order: equal on every rank of any world."""

    def saved() -> Iterator[torch.Tensor]:
        for _, tensor in trainer.parameters():
            beat()
            yield tensor
        for _, parameter in trainer.named():
            state = trainer.optimizer.state[parameter]
            for key in sorted(state):
                beat()
                yield trainer.whole(state[key])

    return intake.digest(saved())


def strike(fault: Fault, rank: Rank) -> None:
    """Break this rank, its agent or its node, and leave the time at which that was done."""
    write_text(rank.file("struck"), str(time.time()))
    if fault is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault is Fault.AGENT:
        os.kill(os.getppid(), signal.SIGKILL)
    elif fault is Fault.NODE:
        for device in ("eth0", "tun0"):  # of an emulated node
            subprocess.run(["ip", "link", "set", device, "down"], capture_output=True)
        os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
