"""Watch a rank that runs in a new interpreter, from the moment it imports torch.

The interpreter finds out which rank it is from a badge file (``badges.py``).
"""

import atexit
import faulthandler
import functools
import itertools
import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from harness.base.documents import to_doc
from harness.base.errors import LaunchError
from harness.cases import CaseSpec, typed
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import RankError
from harness.record.store import write_text
from harness.training.contract import placed_below
from harness.training.rank.setup import RankPlace
from harness.training.script import badges, workplace
from harness.training.script.evidence import begin, ended, finish_measured, rank_of
from harness.training.script.prepared import Preparation, put
from harness.training.script.process import meet_at
from harness.training.script.startup.sitecustomize import BADGES, HOME

#: Number of optimizer steps that a process may take before it joins a process group. If it takes
#: more, an error reports that its launcher gave it no rank.
PATIENCE = 64


def watch_once_grouped(folder: Path) -> None:
    """Watch this process as soon as it joins a process group.

    If the script has spawned the process, only the group knows the number of its rank. A world of
    one rank may have no group. Its process becomes rank 0 with its first backward pass, or with its
    first forward pass after an optimizer was made.

    Raises:
        LaunchError: in the script, if the process trains without joining a group. Without the error
            the launch would never end.
    """
    join: Callable[..., Any] = dist.init_process_group
    updates = itertools.count()
    prepared = Preparation()
    prepared.install()

    def alone(*_: object) -> None:
        if next(updates) >= PATIENCE and not dist.is_initialized():
            error = _not_started(
                badges.read(badges.path_of(folder, 0)).spec.case.script,
                "a process trains without a rank: its launcher has not set RANK, and it has joined"
                " no process group",
            )
            # Write the error here, because a launcher would report only that the process failed.
            _tell(folder / "rank0.error.json", error, error.what, str(error))
            raise error

    undo = [register_optimizer_step_pre_hook(alone).remove]

    def begin_as(badge: Path) -> None:
        while undo:
            undo.pop()()
        if badge.is_file():
            for name in (BADGES, HOME):  # processes that this rank starts must not become ranks
                os.environ.pop(name, None)
            watch(badge, prepared)

    @functools.wraps(join)
    def joined(*args: Any, **more: Any) -> None:
        join(*args, **more)
        begin_as(badges.path_of(folder, dist.get_rank()))

    undo.append(put(dist, "init_process_group", joined))
    only = badges.path_of(folder, 0)
    if only.is_file() and badges.read(only).spec.case.world_size == 1:
        undo += _before_it_trains(lambda: begin_as(only), prepared)


def _before_it_trains(begin: Callable[[], None], prepared: Preparation) -> list[Callable[[], None]]:
    """Call ``begin`` when training begins, and return the functions that undo the patches."""
    backward: Callable[..., Any] = torch.autograd.backward
    call: Callable[..., Any] = nn.Module.__call__

    @functools.wraps(backward)
    def trained(*args: Any, **more: Any) -> Any:
        begin()
        return torch.autograd.backward(*args, **more)

    @functools.wraps(call)
    def called(module: nn.Module, /, *args: Any, **more: Any) -> Any:
        if not (prepared.optimizers and module.training and torch.is_grad_enabled()):
            return call(module, *args, **more)
        begin()
        return module(*args, **more)

    return [put(torch.autograd, "backward", trained), put(nn.Module, "__call__", called)]


def _refuse_fewer(case: CaseSpec, file: Path) -> None:
    """Make the first optimizer step raise LaunchError if the launcher has started too few ranks.

    Without the error, this rank would wait forever for the missing ranks.
    """
    looked = False

    def stepping(*_: object) -> None:
        nonlocal looked
        if looked:
            return
        looked = True
        variable = os.environ.get("WORLD_SIZE", "")
        stated = int(variable) if variable.isdigit() else case.world_size
        size = dist.get_world_size() if dist.is_initialized() else stated
        if size < case.world_size:
            what = f"the launcher has started {size} of {case.world_size} ranks"
            error = _not_started(case.script, what)
            _tell(file, error, error.what, str(error))
            raise error

    register_optimizer_step_pre_hook(stepping)


def _not_started(script: str, what: str) -> LaunchError:
    """Return the error for a process whose launcher did not start the expected ranks."""
    words = shlex.split(script)
    variable = ""
    if typed.launcher(words)[0] == "accelerate launch":
        what += f"; {typed.ONE_PROCESS}"
        variable = f"{typed.ON_CPU} "
    return LaunchError(
        what,
        where=script,
        expected="a launcher that starts {ranks} ranks on this device",
        fix=f"{variable}{typed.RUN} torchrun --nproc_per_node={{ranks}}"
        f" {shlex.join(typed.after_launcher(words))}",
    )


def watch(path: Path, prepared: Preparation | None = None) -> None:
    """Watch this process as the rank that the badge file ``path`` describes.

    ``prepared`` holds the loaders and optimizers that the process made before its rank was known.
    """
    badge = badges.read(path)
    spec = badge.spec
    out = Path(badge.spec.out)
    (out / f"rank{badge.rank}.pid").write_text(str(os.getpid()), encoding="utf-8")
    faulthandler.register(
        signal.SIGUSR1,
        file=(out / f"rank{badge.rank}.stack").open("w", encoding="utf-8"),
        all_threads=True,
    )
    timeout = timedelta(seconds=spec.deadlines.start_s)
    store = dist.TCPStore(badge.host, badge.port, None, False, timeout)
    place = RankPlace(
        rank=badge.rank,
        world_size=spec.case.world_size,
        local_rank=badge.local_rank,
        node=badge.node,
        device=badge.device,
        cpus=badge.cpus,
        parent=0,
        store=lambda: store,
    )
    if badge.way == "fresh":
        meet_at(badge.host, badge.port)
    rank = rank_of(spec, place, Beats(Path(badge.beats), spec.case.world_size), store)
    rank.beat(Phase.BUILD)

    def leave() -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    watched = begin(rank, badge.command, badge.way, leave, prepared)
    file = rank.file("error.json")
    if badge.command.launcher:
        _refuse_fewer(spec.case, file)

    def broke(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        finish_measured(watched)
        text = "".join(traceback.format_exception(kind, error, at))
        line = placed_below(error, workplace.of(spec, badge.node))
        _tell(file, error, line.removeprefix(f"{kind.__name__}: "), text)
        sys.__excepthook__(kind, error, at)

    def over() -> None:
        if os.getpid() == pid and not file.is_file():
            try:
                ended(watched, spec, leave)
            except LaunchError as early:
                _tell(file, early, str(early), str(early))

    pid = os.getpid()
    sys.excepthook = broke
    atexit.register(over)


def _tell(file: Path, error: BaseException, message: str, text: str) -> None:
    noted = RankError.of(error, message, text)
    write_text(file, json.dumps(to_doc(noted)))
