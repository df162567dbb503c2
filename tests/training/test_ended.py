"""A rank that a launcher ends with SIGTERM writes its last collectives first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: A process of one rank that is blocked in C code and has made a child, whose pid it prints. If
#: it has a handler, it returns from C code at times. Otherwise a signal that arrives just before
#: pause() would never be handled, because Python has already checked for signals.
RANK = """
import ctypes, os, signal, sys, time
from pathlib import Path
import torch.distributed as dist
from harness.training.observe import collectives

collectives.enable(64)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
collectives.dump_before_end(Path(sys.argv[1]), "gloo")
child = os.fork()
if not child:
    ctypes.CDLL(None).pause()
print(child, flush=True)
while os.waitpid(child, os.WNOHANG) == (0, 0):
    time.sleep(0.01)
handled = sys.argv[2] == "own"
if handled:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("alive", flush=True)
while True:
    ctypes.CDLL(None).usleep(50_000) if handled else ctypes.CDLL(None).pause()
"""


def started(path: Path, handler: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RANK, str(path), handler]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("handler", ["none", "own"])
def test_a_rank_in_c_code_writes_its_collectives_before_it_ends(
    tmp_path: Path, handler: str
) -> None:
    path = tmp_path / "flight.json"
    with started(path, handler) as rank:
        assert rank.stdout is not None
        os.kill(int(rank.stdout.readline()), signal.SIGTERM)  # ends the child, not the rank
        assert rank.stdout.readline() == "alive\n" and not path.exists()
        rank.terminate()
        try:
            status = rank.wait(30)
        finally:
            rank.kill()
    if handler == "none":
        assert status == -signal.SIGTERM
        assert json.loads(path.read_text(encoding="utf-8"))["collectives"] == []
    else:
        assert status == 7
