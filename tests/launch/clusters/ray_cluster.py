"""A real Ray cluster of several raylets on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = 100 * 2**20


@contextmanager
def cluster(cpus: tuple[int, ...] = (3, 3, 3)) -> Iterator[str]:
    """Run one raylet for each number of CPUs and a head without CPUs; yield the head's address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    before = helpers()
    head = dict(num_cpus=0, include_dashboard=False, object_store_memory=MEMORY)
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        for n in cpus:
            found.add_node(num_cpus=n, object_store_memory=MEMORY)
        yield str(found.address)
    finally:
        found.shutdown()
        for pid in helpers() - before:  # some of Ray's helpers outlive their cluster
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def helpers() -> set[int]:
    """Return the pids of processes that Ray started in addition to its raylets."""
    names = set()
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and b"ray::" in (path / "cmdline").read_bytes():
                names.add(int(path.name))
    return names
