"""Control the threads and signals of a rank, and find the threads of its process groups."""

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

#: Maps the id of a thread to the process group that it serves. A group is named by its ranks, for
#: example ``0,1``. Further groups of the same ranks have a number: ``0,1#1``.
_served: dict[int, str] = {}


def follow() -> None:
    """Start to record which threads belong to each new process group."""
    make: Callable[..., Any] = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def seen(size: int, rank: int, ranks: list[int], *args: Any, **more: Any) -> Any:
        """Make a process group, and record the threads that it starts."""
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
    """Add the threads of the process groups to the metadata of the trace that is being recorded."""
    torch.autograd._add_metadata_json(GROUPS, json.dumps({str(t): n for t, n in _served.items()}))


_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this signal when the parent ends; exit if it has already ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def precise_sleep() -> None:
    """Set the timer slack to 1 ns, so that sleeping ends within tens of microseconds."""
    _LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def running() -> frozenset[int]:
    """Return the ids of all threads of this process."""
    return frozenset(int(task.name) for task in Path("/proc/self/task").iterdir())


def tune_loop_thread(before: frozenset[int]) -> int:
    """Schedule gloo's loop thread as SCHED_BATCH, and return the number of changed threads.

    ``before`` is the result of ``running()`` before the process group was made. The loop thread is
    the new thread that does not belong to one of torch's pools (``pt_...``). Before torch 2.12 it
    has no name.
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
