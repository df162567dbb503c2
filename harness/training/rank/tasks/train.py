"""Task ``train``: save a checkpoint, fail on purpose, and resume, to measure recovery."""

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

#: The file with the sizes of a checkpoint's files at the time when the checkpoint was complete.
SIZES = "sizes.json"


@dataclass
class Took:
    """The durations of loading and saving checkpoints (``load_s``, ``save_s``), in s.

    ``stall_s`` is the time in s for which saving stopped the training. ``first_step_at`` is the
    wall clock time at the end of the first step, in s since the epoch. ``written`` is set when an
    asynchronous checkpoint is complete.
    """

    load_s: float = 0.0
    save_s: float = 0.0
    stall_s: float = 0.0
    first_step_at: float = 0.0
    written: Event = field(default_factory=Event)


def prepare(spec: LaunchSpec, _: Path) -> None:
    """Import the case's files, and make kernels deterministic.

    A resumed training must equal an uninterrupted one bit by bit.
    """
    collectives.enable(collectives.LAST)
    Accelerator(torch.device(spec.case.device)).repeatable()
    load(spec.files)


def run(task: Train, rank: Rank) -> RankRestart:
    """Train all steps, or the steps after the checkpoint, and return the record of this rank.

    A checkpoint is saved after ``task.save_after`` steps. If the task has a fault, it is injected
    into rank ``task.rank`` before step ``task.fault_step``.
    """
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
        """Return the digest of the current training state."""
        return digest(trainer, lambda: rank.beat(Phase.STEADY, first + len(losses)))

    folder = Path(task.folder)
    if task.resume:
        first, took.load_s = load_state(trainer, folder)
        loaded = looked_at()
    pending: Any = None
    saved = ""
    # An asynchronous save runs during the next steps, whose collectives use the default process
    # group. The save therefore needs another group.
    aside = dist.new_group(backend="gloo") if task.asynchronous else None
    for step in range(first, task.steps):
        rank.beat(Phase.STEADY, step)
        if task.fault is not Fault.NONE and (ctx.rank, step) == (task.rank, task.fault_step):
            if pending is not None:  # the recovery that is measured needs a complete checkpoint
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
    """Return the trainer, or raise ValueError if a checkpoint cannot hold all of its state.

    ``verb`` is the command that the message names.
    """
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
    """Save the training state in ``folder``; return the future of an asynchronous save, or None.

    ``aside`` is the process group of an asynchronous save.
    """
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
        """Record that the asynchronous save is complete."""
        took.save_s = time.perf_counter() - began
        took.written.set()

    if pending is not None:
        pending.add_done_callback(done)
    return pending


def _own(folder: Path, trainer: LocalTrainer) -> Path:
    """Return the file for the state that only this rank has."""
    return folder / f"own{trainer.ctx.rank}.pt"


def load_state(trainer: LocalTrainer, folder: Path) -> tuple[int, float]:
    """Load the training state, and return the next step and the seconds that loading took.

    Raise ValueError if the checkpoint is damaged.
    """
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
    # The file is missing if the world that saved the checkpoint was smaller.
    if (state_file := _own(folder, trainer)).is_file():
        trainer.remember(torch.load(state_file, weights_only=True))
    return int(state["step"]), time.perf_counter() - began


def _damage(folder: Path, error: CheckpointException) -> str:
    """Return a message that names the damaged file of a checkpoint and the library's error."""
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
    """Write down the sizes of a checkpoint's files, so that a damaged file can be named later."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name != SIZES]
    write_text(
        folder / SIZES, json.dumps({path.name: path.stat().st_size for path in sorted(files)})
    )


def digest(trainer: LocalTrainer, beat: Callable[[], None]) -> str:
    """Return one digest of all tensors that a checkpoint contains, unsharded and in order.

    It is equal on every rank, and does not depend on the size of the world. ``beat`` is called for
    each tensor.
    """

    def saved() -> Iterator[torch.Tensor]:
        """Yield the parameters and the optimizer's state."""
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
    """Write down the current time, and inject a fault into this rank, its agent or its node."""
    write_text(rank.file("struck"), str(time.time()))
    if fault is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault is Fault.AGENT:
        os.kill(os.getppid(), signal.SIGKILL)
    elif fault is Fault.NODE:
        for device in ("eth0", "tun0"):  # the network interfaces of an emulated node
            subprocess.run(["ip", "link", "set", device, "down"], capture_output=True)
        os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
