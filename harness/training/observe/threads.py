"""Pins a rank and tames gloo's loop thread.

``gloo_tcp_loop`` spins on a lock whose holder is off-CPU when cores are few; under SCHED_BATCH
a 64 KiB all-reduce on 2 cores takes a tenth of the time. Recorded in every launch.
"""

import ctypes
import os
import signal
from pathlib import Path

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
