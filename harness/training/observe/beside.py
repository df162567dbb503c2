"""Bytes that a rank passes on beside its sockets, as far as the kernel shows: writes, shared
memory.

Gradients that travel through a file or through /dev/shm would not be counted on any socket.
"""

import os
import resource
import stat
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.host import ranks

#: Shared with the kernel alone: libuv submits its reads and writes of sockets through it.
KERNELS_OWN = "anon_inode:[io_uring]"
#: Descriptors that a process prints to.
OUTPUT = (1, 2)
#: How much of what was printed is looked at.
MOST_READ = 1 << 26


def written_bytes() -> int | None:
    """Bytes that this process passed to write calls so far, sockets included; None if untold."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), None)


def printed() -> Mapping[tuple[int, int], tuple[int, int]]:
    """Files that this process prints to: device and inode -> descriptor and size."""
    sizes = {}
    for descriptor in OUTPUT:
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            sizes[status.st_dev, status.st_ino] = descriptor, status.st_size
    return sizes


def repeated_bytes(before: Mapping[tuple[int, int], tuple[int, int]]) -> int:
    """Of what was printed since then, bytes that say nothing: what compressing it saves.

    Warnings that are repeated hand on no gradients; gradients do not compress.
    """
    saved = 0
    for file, (descriptor, size) in printed().items():
        _, start = before.get(file, (descriptor, 0))
        try:
            text = os.pread(descriptor, min(size - start, MOST_READ), start)
        except (OSError, ValueError):  # it can't be read, or is shorter than it was
            continue
        saved += max(0, len(text) - len(zlib.compress(text, 1)))
    return saved


def helpers_cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds so far of processes that work for this one, and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(ranks.cpu_s, pids))


def shared_memory(helpers: Sequence[int] = ()) -> frozenset[str]:
    """Writable memory that this process shares with others, by what it is a map of.

    But for that which its ``helpers`` made: a DataLoader's workers hand over batches in it, and
    wait for each other by semaphores.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    fields = [line.split(None, 5) for line in lines if KERNELS_OWN not in line]
    prefixes = tuple(f"/dev/shm/torch_{pid}_" for pid in helpers)
    prefixes += ("/dev/shm/sem.",) if helpers else ()
    return frozenset(
        field[5].strip()
        for field in fields
        if len(field) > 5
        and field[1][1] == "w"
        and field[1][3] == "s"
        and not field[5].startswith(prefixes)
    )
