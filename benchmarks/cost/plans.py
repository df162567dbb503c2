"""Cost of a plan, the first time and with a cache of described cases.

    python benchmarks/cost/plans.py [--on 8xh100 64x8xh100]

Prints the CPU seconds of the program and its agent, and their ratio to those of a single case
(``ddp/decoder-350m``). The ratio hardly depends on the machine. The modules are compiled to
bytecode first, as in an installation. Exit status 1 if a plan takes more than ``MOST`` times the
CPU time of a single case.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile

#: A case whose description counts a model of 24 layers.
ONE = "ddp/decoder-350m"
#: Limit of the ratio. A suite describes seven shapes of models; importing torch dominates the cost
#: of describing one case.
MOST = 4.0
#: The folder of compiled modules, which overrides the one of the environment.
COMPILED = tempfile.TemporaryDirectory()


def cpu_s(words: list[str], cache: str) -> float:
    """Return the user and system seconds of a command and its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": COMPILED.name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "harness", "run", "plan", *words]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(places: list[str]) -> int:
    """Print a row for each machine; return 1 if a plan takes too long."""
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
