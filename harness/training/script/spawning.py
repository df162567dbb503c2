"""Refuse to let a rank start further ranks. If it does, its script is itself a launcher."""

from __future__ import annotations

import functools
import importlib
import os
import shlex
import subprocess
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, cast

import torch.distributed as dist
import torch.multiprocessing

from harness.base.errors import LaunchError
from harness.cases import typed
from harness.cases.typed import RUN, asks_for_ranks

JOINS = "init_process_group"


def refuse_spawning(script: str) -> None:
    """Make this rank raise LaunchError if it starts ranks.

    A rank starts ranks if it calls ``mp.spawn``. It also does so if it starts processes or
    interpreters that join a process group while it has not joined a group itself.
    """
    spawning = importlib.import_module("torch.multiprocessing.spawn")
    start: Callable[[BaseProcess], None] = BaseProcess.start
    open_: Callable[..., None] = subprocess.Popen.__init__

    def refuse(*_: object, **__: object) -> NoReturn:
        raise _own_launcher(script)

    @functools.wraps(start)
    def started(process: BaseProcess) -> None:
        if not dist.is_initialized() and any(map(joins_group, _called_by(process))):
            refuse()
        start(process)

    @functools.wraps(open_)
    def opened(program: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
        words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
        folder = Path(os.fsdecode(options.get("cwd") or "."))
        if not dist.is_initialized() and typed.joins_group(words, folder):
            refuse()
        open_(program, args, *more, **options)

    vars(spawning)["start_processes"] = refuse
    cast(Any, subprocess.Popen).__init__ = opened
    torch.multiprocessing.start_processes = refuse
    cast(Any, BaseProcess).start = started


def _own_launcher(script: str) -> LaunchError:
    words = shlex.split(script)
    if asks_for_ranks(words):
        return LaunchError(
            "each rank starts ranks of its own: the script is its own launcher, and its files do"
            " not show this",
            where=script,
            expected="a command that names an interpreter before the script, as for any launcher",
            fix=f"{RUN} env python {script}",
        )
    return LaunchError(
        "each rank starts ranks of its own: the script is its own launcher, and no word of its"
        " command is {ranks}",
        where=script,
        expected="{ranks} instead of a fixed number of ranks in the command, or a shell script that"
        " passes the number of ranks to the script",
        fix=f"{RUN} bash launch.sh {{ranks}}",
    )


def _called_by(process: BaseProcess) -> list[object]:
    """Return what a process may call first: its target, and the arguments of the target."""
    return [getattr(process, "_target", None), *getattr(process, "_args", ())]


def joins_group(function: object) -> bool:
    """Return whether a function, or one that it calls, names ``init_process_group``."""
    reached = [function]
    for candidate in reached:  # the loop appends to this list
        if not isinstance(candidate, FunctionType):
            continue
        names = candidate.__code__.co_names
        if JOINS in names:
            return True
        called = (candidate.__globals__.get(name) for name in names)
        reached += [x for x in called if isinstance(x, FunctionType) and x not in reached]
    return False
