"""Measure the cost of a launch's digests: of the files that it loaded, and of its parameters.

The output is the CPU time of each in a fresh process, because every rank is one, and their share of
the shortest timed launch of a record.

    python benchmarks/cost/checks.py [RUN]
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from statistics import median

import torch

from harness.record import Purpose
from harness.record.store import load
from harness.training.agent.agent import preload
from harness.training.observe.intake import digest
from harness.training.rank.sources import sources

SAMPLE = Path(__file__).parents[2] / "results" / "samples" / "ddp-nano"
TIMES = 9


def cpu_times_s(num_params: int) -> tuple[float, float]:
    """Return the CPU time (s) of the digests of loaded files, and of the parameters in fp32."""
    torch.set_num_threads(1)
    parameters = torch.zeros(num_params)
    began = time.process_time()
    sources()
    loaded = time.process_time()
    digest([parameters])
    return loaded - began, time.process_time() - loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, default=SAMPLE)
    run = load(parser.parse_args().run)
    launch = min((x for x in run.launches if x.purpose is Purpose.TIMED), key=lambda x: x.wall_s)
    facts = run.described[launch.case].facts
    assert facts is not None
    preload()  # an agent does the same before it forks ranks
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(cpu_times_s, (facts.num_params,)) for _ in range(TIMES)]
    files_s = median(files for files, _ in rows)
    parameters_s = median(parameters for _, parameters in rows)
    share = (files_s + parameters_s) / launch.wall_s
    print(
        f"files {1e3 * files_s:.1f} ms, {facts.num_params} parameters {1e3 * parameters_s:.1f} ms"
    )
    print(f"{share:.1%} of the shortest launch, {launch.wall_s:.2f} s")


if __name__ == "__main__":
    main()
