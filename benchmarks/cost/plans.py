"""Measure the cost of ``run plan``: for the first time, and with cached descriptions of its cases.

    python benchmarks/cost/plans.py [--on 8xh100 64x8xh100]

The output is the CPU time of the program and its agent, and its ratio to the CPU time of a plan
with one case (``ddp/decoder-350m``). The ratio is comparable between machines. Modules are compiled
to bytecode first, as in an installation. The exit status is 1 if the ratio is above ``MOST``.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile

#: The case to compare with. Its description counts the FLOPs of a model with 24 layers.
ONE = "ddp/decoder-350m"
#: Largest ratio of CPU times. The suites have seven different models, but most of the time for one
#: case is the import of torch.
MOST = 4.0
#: The folder of compiled modules, whatever the environment sets.
COMPILED = tempfile.TemporaryDirectory()


def cpu_s(words: list[str], cache: str) -> float:
    """Return the user and system time (s) of a command and of all processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": COMPILED.name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "harness", "run", "plan", *words]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(places: list[str]) -> int:
    """Print a row for each kind of hardware; return 1 if a plan takes too long."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as cache:
        cpu_s([ONE, "--on", places[0]], cache)  # compiles the imported modules to bytecode
    print("| plan suites --on | first time | of one case | second time |")
    print("|---|---|---|---|")
    for place in places:
        with tempfile.TemporaryDirectory() as cache:
            one_s = cpu_s([ONE, "--on", place], cache)
        with tempfile.TemporaryDirectory() as cache:
            first_s, second_s = (cpu_s(["suites", "--on", place], cache) for _ in range(2))
        worst = max(worst, first_s / one_s)
        ratio = f"{first_s / one_s:.1f} times"
        print(f"| {place} | {first_s:.1f} s | {ratio} | {second_s:.1f} s |", flush=True)
    return int(worst > MOST)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="+", default=["8xh100", "64x8xh100"])
    sys.exit(main(parser.parse_args().on))
