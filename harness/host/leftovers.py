"""Remove what killed processes of this program leave in shared memory and among temporary files."""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path

#: Six hex digits of this host, part of the names of its folders. Hosts may share a file system
#: whose locks only hold on one host.
HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
#: Temporary folders of agents, and of the ranks of a launch. Their processes hold a lock on them.
AGENT = f"scaleproof-agent-{HOST}-"
_FOLDERS = re.compile(rf"{AGENT}\w+|scaleproof-{HOST}[0-9a-f]{{8}}-\d+")
SHM = Path("/dev/shm")
#: Minimum age, in seconds, of what is removed. A process may be about to map a younger file, or to
#: lock a younger folder.
YOUNG_S = 60.0


def hold(folder: Path) -> None:
    """Lock a temporary folder until this process ends, so that nobody removes it meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def remove() -> int:
    """Remove this user's leftovers, and return how many files and folders they were.

    They are NCCL's files in shared memory that no process maps, and temporary folders that no
    process holds.
    """
    return _remove_files() + _remove_folders()


def _remove_folders() -> int:
    removed = 0
    for path in Path(tempfile.gettempdir()).glob("scaleproof-*"):
        if not _FOLDERS.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # another process may have removed or locked the folder
            if not _is_old(path.lstat()):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed += 1
            finally:
                os.close(descriptor)
    return removed


def _is_old(facts: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user and is old enough to be removed."""
    return facts.st_uid == os.getuid() and facts.st_mtime < time.time() - YOUNG_S


def _remove_files() -> int:
    mapped: set[str] | None = None
    removed = 0
    for path in SHM.glob("nccl-*"):
        with contextlib.suppress(OSError):  # another agent may have removed the file
            facts = path.lstat()
            if not stat.S_ISREG(facts.st_mode) or not _is_old(facts):
                continue
            mapped = _mapped() if mapped is None else mapped
            if str(path) not in mapped:
                path.unlink()
                removed += 1
    return removed


def _mapped() -> set[str]:
    """Return the files that processes of this user map."""
    paths: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            rows = (line.split(None, 5) for line in maps.read_text(encoding="utf-8").splitlines())
            paths |= {row[5] for row in rows if len(row) > 5}
    return paths
