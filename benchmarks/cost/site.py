"""Measure the time of ``report site`` for many runs: new ones, verified ones, and a second call.

    python benchmarks/cost/site.py --runs 500

Runs are copies of the stored samples, each with its page. Each copy has an additional file, so that
the cache of verified runs treats it as a different run. In practice a run was verified before if it
is in the history of nightly runs, or if it was reported.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.interface.report.page import page
from harness.record.store import load

SAMPLES = Path(__file__).parents[2] / "results" / "samples"


def taken(words: list[str]) -> tuple[float, float]:
    """Return the wall time and the CPU time of a command, in s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    count = parser.parse_args().runs
    samples = sorted(p for p in SAMPLES.iterdir() if p.is_dir())
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        runs = Path(place) / "runs" / "samples"
        for sample in samples:
            page.write(load(sample), sample)
        for i in range(count):
            shutil.copytree(samples[i % len(samples)], runs / f"{i:04}")
            (runs / f"{i:04}" / "number.txt").write_text(str(i))
        site = [sys.executable, "-m", "harness", "report", "site", place]
        for what in (f"{count} runs, none verified before", "all verified before", "again"):
            wall_s, cpu_s = taken(site)
            print(f"{what}: {wall_s:.1f} s, {cpu_s:.1f} s of CPU", flush=True)
            if what.endswith("none verified before"):
                (Path(place) / "site" / "entries.json").write_text(
                    "{}"
                )  # the site is built from scratch
        shutil.copytree(samples[0], runs / "new")
        wall_s, cpu_s = taken(site)
        print(f"one run more: {wall_s:.1f} s, {cpu_s:.1f} s of CPU")


if __name__ == "__main__":
    main()
