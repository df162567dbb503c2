"""Leftovers of ranks: shared memory of NCCL's where they are killed, files of a script's."""

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
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
    paths: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            rows = (line.split(None, 5) for line in maps.read_text(encoding="utf-8").splitlines())
            paths |= {row[5] for row in rows if len(row) > 5}
    return paths


def remove(folder: Path, paths: Sequence[str]) -> None:
    """Files and folders in ``folder`` that a training has written."""
    for path in paths:
        target = folder / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
