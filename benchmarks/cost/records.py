"""What a record costs its readers as it grows: seconds against launches, and the exponent.

A sample is entered again and again, as so many plans of other seeds. Loading, report (tables and
page), verification and the entry of one more launch are timed, in CPU seconds; the exponent is the
slope of the logarithms with its 95 % interval, 1 for a cost that is linear. Exit status 1 where one
surely grows faster than that.

    python benchmarks/cost/records.py [--launches 250 1000 4000 16000] [--only load save]
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import linregress, t as t_distribution

from harness.analysis.judging import verdicts
from harness.analysis.reading import load
from harness.analysis.verify import verify
from harness.interface.report import tables
from harness.interface.report.page import page
from harness.record import LaunchRecord, RunRecord
from harness.record.chain import Chain, Kind
from harness.record.store import save

SAMPLE = Path(__file__).parents[2] / "results" / "samples" / "ddp-nano"
#: A cost that grows faster than this power of the launches is not linear.
LINEAR = 1.1
#: Each reader is timed so often.
TIMES = 3


def grown(launches: int, folder: Path) -> RunRecord:
    """The sample's plan as often as gives so many launches, each with a seed of its own."""
    run = load(SAMPLE)
    (plan,) = run.plans
    entered: list[LaunchRecord] = []
    plans, described, blocks, windows = [], {}, [], {}
    for seed in range(-(-launches // len(run.launches))):
        cases = {a.case.hash: dataclasses.replace(a.case, seed=seed) for a in plan.arms}
        arms = tuple(dataclasses.replace(a, case=cases[a.case.hash]) for a in plan.arms)
        other = dataclasses.replace(plan, arms=arms)
        plans.append(other)
        windows[other.hash] = run.windows[plan.hash]
        described |= {cases[old].hash: told for old, told in run.described.items() if old in cases}
        blocks += [dataclasses.replace(b, plan=other.hash) for b in run.blocks]
        for launch in run.launches:
            name = f"{launch.launch.rpartition('-')[0]}-{seed}-{len(entered) + 1:05}"
            made = dataclasses.replace(
                launch, launch=name, plan=other.hash, case=cases[launch.case].hash
            )
            entered.append(made)
            (folder / "launches" / name).symlink_to(SAMPLE / "launches" / launch.launch)
    record = dataclasses.replace(
        run, plans=tuple(plans), described=described, blocks=tuple(blocks), windows=windows,
        launches=tuple(entered), head="", verdicts=(),
    )  # fmt: skip
    return dataclasses.replace(record, verdicts=verdicts.verdicts(record))


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def costs(launches: int, only: Sequence[str]) -> dict[str, list[float]]:
    """CPU seconds of each reader, of a record of so many launches, as often as it was timed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "launches").mkdir()
        run = grown(launches, folder)
        chain = Chain(folder / "chain")
        chain.add(Kind.LAUNCH, *run.launches)
        readers: dict[str, Callable[[], object]] = {
            "save": lambda: save(run, folder),
            "load": lambda: load(folder),
            "page": lambda: page.write(run, folder),
            "tables": lambda: tables.summary(run, folder, "", 100),
            "verify": lambda: verify(run, folder),
            "enter": lambda: chain.add(Kind.LAUNCH, run.launches[-1]),
        }
        return {
            name: [seconds(reader) for _ in range(TIMES)]
            for name, reader in readers.items()
            if not only or name in only
        }


def main(argv: Sequence[str]) -> int:
    """The table; 1 where a cost is not linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes_usual = [250, 1000, 4000, 16000]
    parser.add_argument("--launches", type=int, nargs="+", default=sizes_usual)
    parser.add_argument("--only", nargs="+", default=[], help="these readers (load after save)")
    asked = parser.parse_args(argv)
    sizes = asked.launches
    costs(sizes[0], asked.only)  # what is imported, and compiled, once
    by_size = [costs(size, asked.only) for size in sizes]
    print(f"{'':8}" + "".join(f"{size:>10,}" for size in sizes) + "  launches  grows as")
    worse = []
    for name in by_size[0]:
        times = [readers[name] for readers in by_size]
        x = np.repeat(np.log(sizes), TIMES)
        fit = linregress(x, np.log(np.maximum(np.ravel(times), 1e-6)))
        power = float(fit.slope)
        around = float(fit.stderr) * float(t_distribution.ppf(0.975, len(x) - 2))
        if power - around > LINEAR:
            worse.append(name)
        shown = "".join(f"{min(repeats):>9.2f}s" for repeats in times)
        print(
            f"{name:8}{shown}            n^{power:.2f} [{power - around:.2f}, {power + around:.2f}]"
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"at most {most:.0f} MB, two records held" + (f"; not linear: {worse}" if worse else ""))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
