"""Shared memory that NCCL leaves behind where its ranks are killed: nobody else removes that."""

import contextlib
import os
import time
from pathlib import Path

SHM = Path("/dev/shm")
#: A younger file may be of a rank that is about to map it, in seconds.
YOUNG_S = 60.0


def sweep() -> int:
    """Remove NCCL's files of this user that no process maps; how many these were."""
    old = time.time() - YOUNG_S
    mapped: set[str] | None = None
    removed = 0
    for path in SHM.glob("nccl-*"):
        with contextlib.suppress(OSError):  # another agent is quicker
            facts = path.stat()
            if facts.st_uid != os.getuid() or facts.st_mtime > old:
                continue
            mapped = _mapped() if mapped is None else mapped
            if str(path) not in mapped:
                path.unlink()
                removed += 1
    return removed


def _mapped() -> set[str]:
    """Files that any process of this user maps."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            rows = (line.split(None, 5) for line in maps.read_text().splitlines())
            found |= {row[5] for row in rows if len(row) > 5}
    return found
