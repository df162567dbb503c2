"""What a plan costs: the first time, and when its cases were described before.

    python benchmarks/cost/plans.py [--on 8xh100 64x8xh100]

CPU seconds of the program and its agent, and how many times those of one case (``ddp/decoder-350m``
on the same machine, described alone): a ratio of one run, which another machine shows, too. All run
as they do where scaleproof is installed: with its modules compiled. Exit status 1 where a plan
takes more than ``MOST`` times that.
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
#: A suite has seven shapes of models; importing torch is most of what describing one case takes.
MOST = 4.0
#: Where compiled modules lie, whatever the environment says of them.
COMPILED = tempfile.TemporaryDirectory()


def cpu_s(words: list[str], cache: str) -> float:
    """User and system seconds of a command and all that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": COMPILED.name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "harness", "run", "plan", *words]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(places: list[str]) -> int:
    """Print a row for each place; 1 where a plan takes too long."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as cache:
        cpu_s([ONE, "--on", places[0]], cache)  # compiles what it imports
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
