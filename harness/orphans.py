"""Orphans: what processes of ours leave behind comes to us, and is ended by us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds that ending them may take.
END_S = 5.0


def adopt() -> None:
    """Become the parent of whatever our descendants leave behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end(session: int | None = None) -> None:
    """SIGKILL and reap every child, and what it leaves in turn; or only those of a session."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        found = [pid for pid in _children() if session in (None, _session_of(pid))]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that is over
            yield from map(int, (task / "children").read_text().split())


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
