"""Refuses the worlds that a rank starts itself: its script is its own launcher."""

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
    """From now on LaunchError where this rank starts ranks: by ``mp.spawn``, or processes and
    interpreters that join a group while it is in none.
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
            " not say so",
            where=script,
            expected="the interpreter before it, as any other launcher",
            fix=f"{RUN} env python {script}",
        )
    return LaunchError(
        "each rank starts ranks of its own: the script is its own launcher, and no word of its"
        " command is {ranks}",
        where=script,
        expected="{ranks} in the place of the number that it takes, or a shell script that starts"
        " it with so many",
        fix=f"{RUN} bash launch.sh {{ranks}}",
    )


def _called_by(process: BaseProcess) -> list[object]:
    """The functions that a process begins with: its target, and those that this is handed."""
    return [getattr(process, "_target", None), *getattr(process, "_args", ())]


def joins_group(function: object) -> bool:
    """Whether a function names ``init_process_group``, or one that it calls by name does."""
    reached = [function]
    for candidate in reached:  # grows meanwhile
        if not isinstance(candidate, FunctionType):
            continue
        names = candidate.__code__.co_names
        if JOINS in names:
            return True
        called = (candidate.__globals__.get(name) for name in names)
        reached += [x for x in called if isinstance(x, FunctionType) and x not in reached]
    return False
