"""Training that saves, dies on purpose, and goes on: what a rank does to measure recovery."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import LaunchSpec, Restart
from harness.record.recovery import RankRestart
from harness.record.spans import Category
from harness.record.store import write_text
from harness.spec.courses import Fault
from harness.training.context import Trainer
from harness.training.observe.spans import span
from harness.training.rank.timed import Feed
from harness.training.trainer import LocalTrainer


@dataclass
class Clock:
    """What has taken how long, in s; ``first_step_at`` is on the clock of the machine."""

    load_s: float = 0.0
    save_s: float = 0.0
    stall_s: float = 0.0
    first_step_at: float = 0.0
    written: Event = field(default_factory=Event)


def train(
    spec: LaunchSpec,
    plan: Restart,
    trainer: Trainer,
    feed: Feed,
    rank: int,
    beat: Callable[[Phase, int], None],
    laps: dict[str, float],
) -> RankRestart:
    """All steps, or those after the checkpoint; saves on the way, breaks where it is told to."""
    if not isinstance(trainer, LocalTrainer):
        raise ValueError("this strategy keeps its state where no checkpoint looks for it")
    clock, losses, first, loaded = Clock(), [], 0, ""
    folder = Path(plan.folder)
    if plan.resume:
        first, clock.load_s = _load(trainer, folder)
        loaded = digest(trainer)
    pending: Any = None
    saved = ""
    # Saving goes on behind the next steps: it must not meet their collectives in one group.
    aside = dist.new_group(backend="gloo") if plan.asynchronous else None
    for step in range(first, spec.steps):
        beat(Phase.STEADY, step)
        if plan.fault is not Fault.NONE and (rank, step) == (plan.rank, plan.fault_step):
            _break(plan.fault, Path(spec.out), rank)
        loss = trainer.step(feed(step))
        losses.append(float("nan") if loss is None else float(loss))
        if step == first:
            clock.first_step_at = time.time()
        if step + 1 == plan.save_after:
            saved = digest(trainer)
            pending = _save(trainer, folder, step + 1, clock, aside)
    if pending is not None:
        pending.result()
        clock.written.wait()
    files = folder.glob("*.distcp")
    return RankRestart(
        rank=rank,
        first_step=first,
        losses=tuple(losses),
        saved=saved,
        loaded=loaded,
        last=digest(trainer),
        load_s=clock.load_s,
        save_s=clock.save_s,
        stall_s=clock.stall_s,
        bytes=sum(f.stat().st_size for f in files) if rank == 0 else 0,
        first_step_at=clock.first_step_at,
        phases_s=laps,
    )


def _save(
    trainer: LocalTrainer, folder: Path, step: int, clock: Clock, aside: dist.ProcessGroup | None
) -> Any:
    """Save all; the future of what goes on behind the next steps, or None."""
    with span("checkpoint", Category.CHECKPOINT, step):
        began = time.perf_counter()
        model, optimizer = get_state_dict(trainer.module, trainer.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": step}
        if aside is not None:
            pending: Any = dcp.async_save(state, checkpoint_id=folder, process_group=aside)
        else:
            dcp.save(state, checkpoint_id=folder)
            pending = None
        clock.stall_s = clock.save_s = time.perf_counter() - began

    def done(_: Any) -> None:
        clock.save_s = time.perf_counter() - began
        clock.written.set()

    if pending is not None:
        pending.add_done_callback(done)
    return pending


def _load(trainer: LocalTrainer, folder: Path) -> tuple[int, float]:
    """The step to go on with, and how long loading took."""
    began = time.perf_counter()
    model, optimizer = get_state_dict(trainer.module, trainer.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        trainer.module,
        trainer.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return int(state["step"]), time.perf_counter() - began


def digest(trainer: LocalTrainer) -> str:
    """Of all that is saved, whole and by name: equal on every rank and in every world size."""
    found = hashlib.sha256()

    def add(name: str, tensor: torch.Tensor) -> None:
        found.update(name.encode())
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())

    for name, tensor in trainer.parameters():
        add(name.removeprefix("module."), tensor)
    for name, parameter in trainer.named():
        state = trainer.optimizer.state[parameter]
        for key in sorted(state):
            add(f"{name.removeprefix('module.')}.{key}", trainer.whole(state[key]))
    return found.hexdigest()[:16]


def _break(fault: Fault, out: Path, rank: int) -> None:
    """Say when, then do it."""
    write_text(out / f"rank{rank}.struck", str(time.time()))
    if fault is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault is Fault.AGENT:
        os.kill(os.getppid(), signal.SIGKILL)
    elif fault is Fault.NODE:
        for device in ("eth0", "tun0"):  # of an emulated node
            subprocess.run(["ip", "link", "set", device, "down"], capture_output=True)
        os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
