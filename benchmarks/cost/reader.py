"""Measure CPU time and peak memory of reading a trace, and compare HolisticTraceAnalysis.

    python benchmarks/cost/reader.py [--mb 200] [--hta]

Fresh processes read a synthetic trace of DDP on CUDA in kineto's format. With ``--hta``,
HolisticTraceAnalysis is installed in a separate environment and reads it, too. CPU time is user
plus system time, so background load does not count. The CPU time of a process that only imports the
reader is subtracted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

OURS = """
import sys
from pathlib import Path
from harness.analysis.timeline.reader import read
if len(sys.argv) > 1:
    read(Path(sys.argv[1]))
"""
CLOSED = """
import sys
from pathlib import Path
from harness.analysis.timeline.close import close
from harness.analysis.timeline.sorting import lanes
from harness.analysis.timeline.reader import read
if len(sys.argv) > 1:
    close([lanes(read(Path(sys.argv[1])))])
"""
THEIRS = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
if len(sys.argv) > 1:
    TraceAnalysis(trace_files={0: sys.argv[1]})
"""


def write_trace(path: Path, size_mb: int) -> int:
    """Write a trace of ``size_mb`` MB, and return the number of its events."""
    head = (
        '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0,'
        ' "world_size": 1},\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
    )
    events = written = 0
    clock, correlation = 1_000.0, 1
    with path.open("w") as out:
        written += out.write(head)
        step = 0
        while written < size_mb * 1_000_000:
            began = clock
            for i in range(1_000):
                call, start = clock, clock + 12.125
                dur = 4.0 + (i * 7919 % 113) / 8
                talk = i % 100 == 99
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if talk else f"sgemm_{i % 37}"
                more = (
                    ', "Collective name": "allreduce", "In msg nelems": 262144, "Group size": 1,'
                    ' "dtype": "Float", "Process Group Name": "0", "Seq": 7'
                    if talk
                    else ""
                )
                for cat, label, tid, at, took, args in (
                    ("cpu_op", f"aten::op{i % 53}", 71, call, 9.5, f'"External id": {events}'),
                    (
                        "cuda_runtime", "cudaLaunchKernel", 71, call + 2, 3.25,
                        f'"External id": {events}, "correlation": {correlation}',
                    ),
                    (
                        "kernel", name, 7, start, dur,
                        f'"device": 0, "stream": 7, "correlation": {correlation}, "grid": [64, 1,'
                        f' 1], "block": [256, 1, 1], "registers per thread": 40{more}',
                    ),
                ):  # fmt: skip
                    written += out.write(
                        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{label}", "pid": 0, "tid":'
                        f' {tid},\n    "ts": {at:.3f}, "dur": {took:.3f},\n    "args": {{\n'
                        f"      {args}\n    }}\n  }},\n"
                    )
                    events += 1
                correlation += 1
                clock += 16.5
            written += out.write(
                f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}",'
                f' "pid": 0, "tid": 71,\n    "ts": {began:.3f}, "dur": {clock - began:.3f}\n  }},\n'
            )
            step += 1
        out.write('  {"ph": "M", "name": "end", "pid": 0, "tid": 0}\n  ]\n}\n')
    return events


def cost(python: Path, code: str, *arguments: str) -> tuple[float, float]:
    """Return the CPU time (s) and the peak memory (MB) of a process that runs ``code``."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        process = subprocess.Popen(
            [str(python), script.name, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(
            f"{python} failed on {arguments}: exit {os.waitstatus_to_exitcode(status)}"
        )
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> int:
    """Measure, and print a table; return 1 if this project's reader misses its goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="size of the trace")
    parser.add_argument(
        "--hta", action="store_true", help="install and measure HolisticTraceAnalysis, too"
    )
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        events = write_trace(trace, parsed.mb)
        size = trace.stat().st_size / 1e6
        print(f"{size:.0f} MB, {events:,} events")
        print("| reader | CPU s | MB / CPU s | peak MB | peak / file |")
        print("|---|---|---|---|---|")
        readers = [
            ("read", OURS, Path(sys.executable)),
            ("read + close", CLOSED, Path(sys.executable)),
        ]
        if parsed.hta:
            home = Path(folder) / "hta"
            venv.create(home, with_pip=True)
            python = home / "bin" / "python"
            install = [str(python), "-m", "pip", "install", "-q", "HolisticTraceAnalysis==0.5.0"]
            subprocess.run(install, check=True)
            readers.append(("HolisticTraceAnalysis 0.5.0, load", THEIRS, python))
        rates = {}
        for name, code, python in readers:
            empty_s, empty_mb = cost(python, code)
            cpu_s, peak_mb = cost(python, code, str(trace))
            cpu_s, peak_mb = cpu_s - empty_s, peak_mb - empty_mb
            rates[name] = size / cpu_s, peak_mb / size
            speed, memory = rates[name]
            print(
                f"| {name} | {cpu_s:.1f} | {speed:.0f} | {peak_mb:.0f} | {memory:.2f} |", flush=True
            )
    if size < 200:
        print("\nthe goals are for 200 MB and more, because fixed costs dominate with small files")
        return 0
    speed, memory = rates["read"]
    met = speed >= 100 and memory <= 0.5
    print(
        f"\n{'met' if met else 'MISSED'}: at least 100 MB / CPU s, at most half the file in memory"
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
