"""Limits and variables that make processes fail or end them."""

import contextlib
import resource
from pathlib import Path

from harness.host import cores, environment

#: Resource limits, their names, and the options of ``ulimit``.
_SHELL = (
    (resource.RLIMIT_AS, "address space", "-v"), (resource.RLIMIT_CPU, "CPU time", "-t"),
    (resource.RLIMIT_FSIZE, "file size", "-f"), (resource.RLIMIT_DATA, "memory", "-d"),
)  # fmt: skip
#: Version 1 of control groups writes a number above this one for no limit.
UNLIMITED = 1 << 60


def surroundings() -> str:
    """Return which limits and variables may be why a process failed, as the end of a sentence.

    It is empty if there are none.
    """
    limited = [
        f"the {what} (ulimit {option})"
        for limit, what, option in _SHELL
        if resource.getrlimit(limit)[0] != resource.RLIM_INFINITY
    ]
    if (memory := memory_limit()) is not None:
        limited.append(f"the memory to {memory / 1e6:.0f} MB (control group)")
    sentence = f"; limited here: {', '.join(limited)}" if limited else ""
    variables = environment.of_libraries()
    return sentence + (f"; variables set here: {variables}" if variables else "")


def memory_limit(root: Path = cores.ROOT, membership: Path = cores.OWN) -> int | None:
    """Return the memory limit in bytes of this process's control groups; None if there is none."""
    allowed = []
    for group in cores.groups("memory", root, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                allowed.append(int((group / name).read_text(encoding="utf-8")))
    return min((limit for limit in allowed if limit < UNLIMITED), default=None)
