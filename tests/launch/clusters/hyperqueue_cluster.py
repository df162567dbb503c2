"""A real HyperQueue server with workers on this machine, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: A program that runs a server and workers, because HyperQueue's wheel has no command for that.
HOLDER = """\
import sys
from hyperqueue.cluster import LocalCluster, WorkerConfig
with LocalCluster(sys.argv[1]) as cluster:
    for cores in sys.argv[2:]:
        cluster.start_worker(WorkerConfig(cores=int(cores)))
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def cluster(folder: Path, cores: tuple[int, ...] = (3, 3, 3)) -> Iterator[str]:
    """Run one worker for each number of cores; yield the server's folder, for clients."""
    server = folder / "hq-server"
    server.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(server), *map(str, cores)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        while (line := process.stdout.readline()).strip() != "ready":
            if not line:
                raise RuntimeError("HyperQueue did not start")
        yield str(server)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=30)
