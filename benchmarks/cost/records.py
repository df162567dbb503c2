"""What a record costs its readers as it grows: seconds against launches, and the exponent.

A sample is entered again and again, as so many plans of other seeds. Loading, report (tables and
page), verification and the entry of one more launch are timed; the exponent is the slope of the
logarithms, 1 for a cost that is linear. Exit status 1 where one grows faster than that.

    python benchmarks/cost/records.py [--launches 500 2000 8000]
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
LINEAR = 1.2


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
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def costs(launches: int) -> dict[str, float]:
    """Seconds of each reader, of a record of so many launches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "launches").mkdir()
        run = grown(launches, folder)
        found = {"save": seconds(lambda: save(run, folder)), "load": seconds(lambda: load(folder))}
        found["page"] = seconds(lambda: page.write(run, folder))
        found["tables"] = seconds(lambda: tables.summary(run, folder, "", 100))
        found["verify"] = seconds(lambda: verify(run, folder))
        chain = Chain(folder)
        chain.add(Kind.LAUNCH, *run.launches)
        found["enter"] = seconds(lambda: chain.add(Kind.LAUNCH, run.launches[-1]))
        return found


def main(argv: Sequence[str]) -> int:
    """The table; 1 where a cost is not linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, nargs="+", default=[500, 2000, 8000])
    sizes = parser.parse_args(argv).launches
    costs(sizes[0])  # what is imported, and compiled, once
    found = [costs(size) for size in sizes]
    print(f"{'':8}" + "".join(f"{size:>10,}" for size in sizes) + "  launches  grows as")
    worse = []
    for name in found[0]:
        times = [one[name] for one in found]
        power = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
        if power > LINEAR:
            worse.append(name)
        print(f"{name:8}" + "".join(f"{t:>9.2f}s" for t in times) + f"            n^{power:.2f}")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"at most {most:.0f} MB, two records held" + (f"; not linear: {worse}" if worse else ""))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
