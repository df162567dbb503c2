"""Pin a rank to cores, and control the loop threads of gloo."""

import ctypes
import functools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from harness.record.spans import GROUPS

_served: dict[int, str] = {}


def follow() -> None:
    """Know the threads of new groups from now on, for the rest of this rank."""
    make: Callable[..., Any] = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def seen(size: int, rank: int, ranks: list[int], *args: Any, **more: Any) -> Any:
        before = running()
        operation = make(size, rank, ranks, *args, **more)
        if dist.is_initialized() and 0 < len(ranks) < dist.get_world_size():
            name = ",".join(map(str, ranks))
            twins = len({n for n in _served.values() if n.partition("#")[0] == name})
            for thread in running() - before:
                _served[thread] = f"{name}#{twins}" if twins else name
        return operation

    owner: Any = distributed_c10d
    owner._new_process_group_helper = seen


def tell() -> None:
    """Leave what is known in the trace that is being taken."""
    torch.autograd._add_metadata_json(GROUPS, json.dumps({str(t): n for t, n in _served.items()}))


_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get this signal when the parent is gone; leave at once when it is gone already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def precise_sleep() -> None:
    """Timer slack of 1 ns, so that a paced wait ends within tens of microseconds."""
    _LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def running() -> frozenset[int]:
    return frozenset(int(task.name) for task in Path("/proc/self/task").iterdir())


def tune_loop_thread(before: frozenset[int]) -> int:
    """Put gloo's loop thread under SCHED_BATCH; the number of threads that took it.

    ``before`` is ``running()`` from before the process group: the loop is the new thread that is
    not one of torch's own (``pt_...``). torch names it only since 2.12.
    """
    tuned = 0
    for thread in running() - before:
        try:
            name = Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8")
            if not name.startswith("pt_"):
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
                tuned += 1
        except OSError:
            continue
    return tuned
