"""The main job, several times in a row: time, overhead, what was decided and what was explained.

    python tests/acceptance/first_run.py [--runs 6] [--draws 200] [--page docs/first-run.md]

Each run is ``pytest suites/`` as a newcomer types it. Afterwards main jobs are drawn from the blocks
of all of them, block by block, and judged by the shipped rules: how often would one more run have
been decided? ``--from DIR`` reads runs that are there instead of making some.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.analysis.judging import verdicts
from harness.analysis.rungs import rungs
from harness.base.numbers import duration
from harness.interface.report.tables import overhead
from harness.record import LaunchRecord, Purpose, RunRecord, Status
from harness.record.store import load

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One main job. ``forecast_off``: its total as foretold at half time, over what it took."""

    run: RunRecord
    seconds: float
    exit: int
    forecast_off: float | None


def job(results: Path) -> Job:
    """Run it and read its record."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/", "--results", str(results)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    (folder,) = results.glob("runs/*/*")
    (folder / "stdout.txt").write_text(done.stdout)
    (folder / "seconds.txt").write_text(f"{seconds} {done.returncode}")
    return read(folder)


def read(folder: Path) -> Job:
    """A run that ``job`` made."""
    seconds, status = (folder / "seconds.txt").read_text().split()
    run, said = load(folder), (folder / "stdout.txt").read_text()
    foretold = [
        (_seconds(m[1]), _seconds(m[2])) for m in re.finditer(r"(\d+:\d+)  ETA (\d+:\d+)", said)
    ]
    half = [at + left for at, left in foretold if at >= run.elapsed_s / 2]
    off = half[0] / run.elapsed_s if half else None
    return Job(run=run, seconds=float(seconds), exit=int(status), forecast_off=off)


def _seconds(text: str) -> float:
    minutes, seconds = text.split(":")
    return 60 * int(minutes) + int(seconds)


def drawn(runs: list[RunRecord], rng: np.random.Generator) -> RunRecord:
    """A main job whose blocks are each from a run drawn anew; undecided plans get more of them."""
    base = runs[0]
    kept = [x for x in base.launches if x.purpose is not Purpose.TIMED]
    for plan in base.plans:
        pool = [_block(r, plan.hash, b) for r in runs for b in (0, 1)]
        pool = [block for block in pool if block]
        mine: list[LaunchRecord] = []
        for number in range(plan.protocol.max_blocks if pool else 0):
            if number >= plan.protocol.min_blocks and not _open(base, kept, mine, plan.hash):
                break
            chosen = pool[rng.integers(len(pool))]
            mine += [
                dataclasses.replace(
                    x, block=number, turn=2 * number + x.turn % 2, launch=f"{x.launch}-{number}"
                )
                for x in chosen
            ]
        kept += mine
    return _judged(base, kept)


def _block(run: RunRecord, plan: str, number: int) -> list[LaunchRecord]:
    return [
        x
        for x in run.launches
        if x.plan == plan and x.purpose is Purpose.TIMED and (x.block, x.attempt) == (number, 0)
    ]


def _open(base: RunRecord, kept: list[LaunchRecord], mine: list[LaunchRecord], plan: str) -> bool:
    judged = _judged(base, [*kept, *mine])
    return any(v.status is Status.INCONCLUSIVE for v in judged.verdicts if v.plan == plan)


def _judged(base: RunRecord, launches: list[LaunchRecord]) -> RunRecord:
    run = dataclasses.replace(base, launches=tuple(launches), verdicts=(), blocks=())
    plans = {x.plan for x in launches}
    known = [p for p in run.plans if p.hash in plans]
    found = [v for p in known for v in verdicts.of_plan(run, p)]
    return dataclasses.replace(run, verdicts=tuple(found))


def page(jobs: list[Job], rates: Counter[int], draws: int) -> str:
    """The page of ``docs/``."""
    machine, torch = jobs[0].run.machine, jobs[0].run.software.get("torch", "")
    day = datetime.date.fromisoformat(jobs[0].run.started_at[:10])
    out = [
        "# The first run, several times", "",
        f"`python tests/acceptance/first_run.py --runs {len(jobs)}` on {machine.num_cores} cores of"
        f" {machine.cpu}, torch {torch}, {day}: `pytest suites/` in a row, on a virtual machine with"
        " neighbours.", "",
        "| run | time | overhead | timed launches | PASS | undecided | other | rungs explained |"
        " foretold at half time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for i, j in enumerate(jobs, 1):
        found = Counter(v.status for v in j.run.verdicts if v.rule)
        told = rungs(j.run)
        timed = sum(x.purpose is Purpose.TIMED for x in j.run.launches)
        other = ", ".join(
            f"{n} {s}" for s, n in found.items() if s not in (Status.PASS, Status.INCONCLUSIVE)
        )
        off = "n/a" if j.forecast_off is None else f"{j.forecast_off - 1:+.0%}"
        out.append(
            f"| {i} | {duration(j.seconds)} | {overhead(j.run):.0%} | {timed} |"
            f" {found[Status.PASS]} | {found[Status.INCONCLUSIVE]} | {other or 'none'} |"
            f" {sum(not r.refused for r in told)} of {len(told)} | {off} |"
        )
    whole = sum(n for undecided, n in rates.items() if not undecided)
    out += [
        "",
        "Overhead is the share of a run in which no model or data is made, trained or checked."
        " `foretold` is the time of the whole run, as its live line told it at half time, against"
        " what it took.", "",
        f"Of {draws} main jobs that were put together from blocks of these runs, judged by the same"
        f" rules, {whole} ({whole / draws:.0%}) had every rule decided; undecided rules:"
        f" {', '.join(f'{k} in {n}' for k, n in sorted(rates.items()))}.",
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def main() -> None:
    """Run, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--from", type=Path, dest="folder")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/first-run.md")
    parsed = parser.parse_args()
    if parsed.folder is not None:
        jobs = [read(p) for p in sorted(parsed.folder.glob("*/runs/*/*"))]
    else:
        keep = Path(tempfile.mkdtemp(prefix="first-run-"))
        print(f"records in {keep}")
        jobs = []
        for i in range(parsed.runs):
            jobs.append(job(keep / str(i)))
            print(f"run {i + 1}: {jobs[-1].seconds:.0f} s, exit {jobs[-1].exit}", flush=True)
    rng, runs = np.random.default_rng(1), [j.run for j in jobs]
    rates = Counter(
        sum(v.status is Status.INCONCLUSIVE for v in drawn(runs, rng).verdicts if v.rule)
        for _ in range(parsed.draws)
    )
    parsed.page.write_text(page(jobs, rates, parsed.draws))
    print(parsed.page.read_text())


if __name__ == "__main__":
    main()
