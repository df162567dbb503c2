"""Measure how the cost of reading a record grows with its number of launches.

The records repeat the plan of a sample with different seeds, and have a chain. The CPU time of
loading, of the report (tables and page), of verification and of adding one launch is measured. The
exponent of the growth is the slope of the logarithms, with its 95 % interval; it is 1 if the cost
is linear. The exit status is 1 if a cost certainly grows faster. ``--programs`` measures whole
programs on the largest record instead: wall time, CPU time, and the peak memory of a process.

    python benchmarks/cost/records.py [--launches 250 1000 4000 16000] [--only load save]
    python benchmarks/cost/records.py --launches 10000 --programs
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self
from unittest import mock

import numpy as np
from scipy.stats import linregress, t as t_distribution

from harness.analysis.judging import verdicts
from harness.analysis.reading import load
from harness.analysis.samples import calibration
from harness.analysis.verify import verify
from harness.interface.report import tables
from harness.interface.report.page import page
from harness.record import LaunchRecord, RankRecord, RunRecord
from harness.record.chain import STATED, Chain, Kind, read
from harness.record.store import save

SAMPLE = Path(__file__).parents[2] / "results" / "samples" / "ddp-nano"
#: Largest exponent of a cost that still counts as linear in the number of launches.
LINEAR = 1.1
#: Code of a program that only reads a record.
READING = "import pathlib, sys, harness.record.store as s; s.load(pathlib.Path(sys.argv[1]))"
#: Code of a small program that starts another one, and prints its CPU time (s) and peak memory
#: (kB). A large program would falsify the peak, because a child starts with the memory of its
#: parent.
STARTED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
#: Number of measurements of each reader.
TIMES = 3


def _later(rank: RankRecord, by: datetime.timedelta) -> RankRecord:
    """Return a rank whose timed window began later."""
    if rank.window_ns is None:
        return rank
    by_ns = round(1e9 * by.total_seconds())
    begin_ns, end_ns = rank.window_ns
    return dataclasses.replace(rank, window_ns=(begin_ns + by_ns, end_ns + by_ns))


def grown(launches: int, folder: Path) -> RunRecord:
    """Return a record with this number of launches, which repeats the sample's plan and verifies.

    Each repetition has a different seed, different times and different digests of its samples.
    """
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
        described |= {
            cases[old].hash: description
            for old, description in run.described.items()
            if old in cases
        }
        blocks += [dataclasses.replace(b, plan=other.hash) for b in run.blocks]
        later = datetime.timedelta(seconds=seed * (run.elapsed_s + 1))
        for launch in run.launches:
            at = datetime.datetime.fromisoformat(launch.started_at)
            name = f"{launch.launch.rpartition('-')[0]}-{seed}-{len(entered) + 1:05}"
            (folder / "launches" / name).mkdir()
            made = dataclasses.replace(
                launch, launch=name, plan=other.hash, case=cases[launch.case].hash,
                started_at=(at + later).isoformat(timespec="milliseconds"),
                ranks=tuple(
                    _later(_left(launch, r, folder, name, seed), later) for r in launch.ranks
                ),
            )  # fmt: skip
            entered.append(made)
    elapsed_s = len(plans) * (run.elapsed_s + 1)
    record = dataclasses.replace(
        run, plans=tuple(plans), described=described, blocks=tuple(blocks), windows=windows,
        launches=tuple(entered), head="", verdicts=(), elapsed_s=elapsed_s,
        device_s=elapsed_s * sum(run.settings.nodes),
    )  # fmt: skip
    pilots_read = calibration.read(record, folder)
    record = dataclasses.replace(record, launch_sd=calibration.launch_sd(pilots_read))
    return dataclasses.replace(record, verdicts=verdicts.verdicts(record))


def _left(launch: LaunchRecord, rank: RankRecord, folder: Path, name: str, seed: int) -> RankRecord:
    """Write the files of a rank for another launch: samples with another time, traces as links."""
    for source in (SAMPLE / "launches" / launch.launch).glob(f"rank{rank.rank}.*"):
        target = folder / "launches" / name / source.name
        if source.suffix != ".npz":
            os.link(_copied(source, folder), target)
            continue
        raw = bytearray(source.read_bytes())
        raw[10:14] = seed.to_bytes(4, "little")  # the time of the archive's first member
        target.write_bytes(raw)
        rank = dataclasses.replace(rank, samples_sha256=hashlib.sha256(raw).hexdigest())
    return rank


def _copied(source: Path, folder: Path) -> Path:
    """Return a copy in the run's folder, because hard links need the same file system."""
    copy = folder / "traces" / f"{source.parent.name}-{source.name}"
    if not copy.is_file():
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, copy)
    return copy


class _Clock(datetime.datetime):
    """The clock of a run that is written down later."""

    time: ClassVar[datetime.datetime]

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(cls.time.timestamp(), tz)


def chained(run: RunRecord, folder: Path) -> RunRecord:
    """Write the chain of the run as a run does, and return the run with the head of the chain."""
    chain = Chain(folder)
    first = load(SAMPLE)
    sealed = read(SAMPLE)[0].body
    with mock.patch("harness.record.chain.datetime.datetime", _Clock):
        _Clock.time = datetime.datetime.fromisoformat(run.started_at)
        chain.add(Kind.SEALED, {**sealed, "run": first.run})
        for plan in run.plans:
            chain.add(Kind.PLAN, {"hash": plan.hash, "plan": plan})
        chain.add(Kind.DESCRIBED, run.described)
        chain.add(Kind.WINDOWS, run.windows)
        chain.add(Kind.BLOCK, *run.blocks)
        for launch in run.launches:
            began = datetime.datetime.fromisoformat(launch.started_at)
            _Clock.time = began + datetime.timedelta(seconds=launch.wall_s)
            chain.add(Kind.LAUNCH, launch)
        chain.add(Kind.ENDED, {name: getattr(run, name) for name in STATED})
    chain.release()
    return dataclasses.replace(run, head=chain.head)


def programs(launches: int) -> None:
    """Print the cost of programs that read and report a record with this number of launches."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as cache:
        folder = Path(name)
        (folder / "launches").mkdir()
        save(chained(grown(launches, folder), folder), folder)
        os.environ["XDG_CACHE_HOME"] = cache
        _told("imports alone", ("-c", READING.partition(";")[0]))
        _told("read the record", ("-c", READING, name))
        _told("scaleproof verify", ("-m", "harness", "verify", name))
        _told("report, verified before", ("-m", "harness", "report", name))
        shutil.rmtree(cache)
        _told("report, the first time", ("-m", "harness", "report", name))


def _told(what: str, words: Sequence[str]) -> None:
    """Run a program and print its cost; raise an error if it fails."""
    began = time.monotonic()
    command = [sys.executable, "-c", STARTED, sys.executable, *words]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    lasted_s = time.monotonic() - began
    cpu_s, most_kb = map(float, output.split())
    most = f"at most {most_kb / 1e3:.0f} MB"
    print(f"{what:24} {lasted_s:6.1f} s {cpu_s:6.1f} s of CPU, {most}", flush=True)


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def costs(launches: int, only: Sequence[str]) -> dict[str, list[float]]:
    """Return all measured CPU times (s) of each reader, for a record with so many launches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "launches").mkdir()
        run = chained(grown(launches, folder), folder)
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
    """Measure, and print a table; return 1 if a cost is not linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes_usual = [250, 1000, 4000, 16000]
    parser.add_argument("--launches", type=int, nargs="+", default=sizes_usual)
    parser.add_argument(
        "--only", nargs="+", default=[], help="measure only these readers; load needs save"
    )
    parser.add_argument(
        "--programs", action="store_true", help="measure whole programs, on the largest record"
    )
    asked = parser.parse_args(argv)
    sizes = asked.launches
    if asked.programs:
        programs(max(sizes))
        return 0
    costs(sizes[0], asked.only)  # not counted, because it imports and compiles modules
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
