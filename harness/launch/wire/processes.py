"""Orphans: what processes of ours leave behind comes to us, and is ended by us."""

import contextlib
import ctypes
import os
import secrets
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

#: The variable by which what we have started is known again, however far it has gone away.
FAMILY = "SCALEPROOF_FAMILY"
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds that ending them may take.
END_S = 5.0


def adopt() -> None:
    """Become the parent of whatever our descendants leave behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def new_family() -> dict[str, str]:
    """An environment that marks what is started in it; it begins with our own pid."""
    return {FAMILY: f"{os.getpid()}-{secrets.token_hex(4)}"}


def end(family: dict[str, str] | None = None, sessions: Collection[int] = ()) -> None:
    """SIGKILL and reap every child, and what it leaves in turn.

    With a family only what belongs to it, by its mark or (the dead have none) by its session.
    """
    mark = f"{FAMILY}={family[FAMILY]}".encode() if family else b""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        pids = list(_children())
        if family is not None:
            pids = [p for p in pids if mark in _environment(p) or _session(p) in sessions]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that is over
            yield from map(int, (task / "children").read_text(encoding="utf-8").split())


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
