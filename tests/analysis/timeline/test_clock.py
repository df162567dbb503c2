"""The clock handshake between two real processes, one of which has a clock with a known error."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

SCRIPT = """
import json, sys, time
import torch.distributed as dist
from harness.training.observe import clock

rank, port, off_ns = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
true = time.time_ns
if rank == 1:
    clock.time.time_ns = lambda: true() + off_ns
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
found = clock.Clock()
found.handshake()
found.handshake()
print(json.dumps([found.offset_ns, found.half_width_ns]))
dist.barrier()
"""


def test_a_wrong_clock_is_found_within_the_stated_bound() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), port, "7000000"],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    answers = [json.loads(r.communicate(timeout=60)[0]) for r in ranks]
    assert answers[0] == [0, 0]
    offset, half = answers[1]
    assert abs(offset - 7_000_000) <= half
    assert half < 7_000_000, "the bound must be smaller than the error"
