"""Real Monarch worker loops on this machine, one per node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .slurm import free_ports

WORKER = """\
import sys
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""
REPOSITORY = Path(__file__).parents[3]


@contextmanager
def hosts(folder: Path, count: int = 3) -> Iterator[list[str]]:
    """Run ``count`` workers and yield their addresses."""
    addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(count)]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RUST_LOG": "error"}
    processes = []
    try:
        for i, address in enumerate(addresses):
            with (folder / f"worker{i}.out").open("wb") as out:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", WORKER, address],
                        env=env, stdout=out, stderr=out, start_new_session=True,
                    )
                )  # fmt: skip
        yield addresses
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
