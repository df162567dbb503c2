"""Limits of the shell and of the control group that make processes fail or end them."""

import contextlib
import resource
from pathlib import Path

from harness.host import cores

#: Resource limits, their names, and the options of ``ulimit``.
_SHELL = (
    (resource.RLIMIT_AS, "address space", "-v"), (resource.RLIMIT_CPU, "CPU time", "-t"),
    (resource.RLIMIT_FSIZE, "file size", "-f"), (resource.RLIMIT_DATA, "memory", "-d"),
)  # fmt: skip
#: Version 1 of control groups writes a number above this one for no limit.
UNLIMITED = 1 << 60


def limits() -> str:
    """Return which limits apply to this process, as the end of a sentence; empty if none does."""
    limited = [
        f"the {what} (ulimit {option})"
        for limit, what, option in _SHELL
        if resource.getrlimit(limit)[0] != resource.RLIM_INFINITY
    ]
    if (memory := memory_limit()) is not None:
        limited.append(f"the memory to {memory / 1e6:.0f} MB (control group)")
    return f"; limited here: {', '.join(limited)}" if limited else ""


def memory_limit(root: Path = cores.ROOT, membership: Path = cores.OWN) -> int | None:
    """Return the memory limit in bytes of this process's control groups; None if there is none."""
    allowed = []
    for group in cores.groups("memory", root, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                allowed.append(int((group / name).read_text(encoding="utf-8")))
    return min((limit for limit in allowed if limit < UNLIMITED), default=None)
