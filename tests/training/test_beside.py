"""Printed output counts by its information: repeated warnings do not count, gradients do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import os, sys, time
from harness.training.observe.kernel_counters import Meter
print("before the window " * 10_000, file=sys.stderr, flush=True)
meter = Meter(time.perf_counter)
meter.start()
{0}
meter.stop()
open(sys.argv[1], "w").write(str(meter.grown().written_bytes))
"""
WARNS = 'os.write(2, b"".join(b"W1126 reducer.cpp:%d: unused parameters\\n" % i for i in range(75_000)))'
GRADIENTS = "os.write(2, os.urandom(1_000_000).hex().encode())"
FILE = 'open(sys.argv[1] + ".other", "wb").write(bytes(3_000_000))'


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("prints", "least", "most"),
    [(WARNS, 0, 400_000), (GRADIENTS, 1_000_000, 2_100_000), (FILE, 3_000_000, 3_100_000)],
    ids=["warnings", "gradients as text", "a file of zeros"],
)
def test_what_is_printed_counts_as_far_as_it_says_something(
    tmp_path: Path, prints: str, least: int, most: int
) -> None:
    result = tmp_path / "result"
    with (tmp_path / "log").open("w+b") as log:
        command = [sys.executable, "-c", PRINTS.format(prints), str(result)]
        subprocess.run(command, stdout=log, stderr=log, check=True)
    assert least <= int(result.read_text()) <= most
