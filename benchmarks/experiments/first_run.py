"""Measure how background load affects the verdicts of ``pytest suites/``.

    python benchmarks/experiments/first_run.py [--runs 5] [--beside 0 0.25 0.5 0.8 bursts]
        [--page FILE]

The output states how many thresholds are decided, how fast, and whether the verdicts are correct.
Each run is ``pytest suites/`` as a new user types it. Another program runs concurrently: it uses a
share of one core, or computes and sleeps in turn for one to eight seconds, as a build does.
``--keep DIR`` keeps the runs in a folder, and the same command continues after an interrupt.
``--from DIR`` only reads these runs.
"""

from __future__ import annotations

import argparse
import datetime
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.analysis.results import required, tally
from harness.base.formatting import duration
from harness.record import RunRecord
from harness.record.store import load

ROOT = Path(__file__).parents[2]
#: The beginning of docs/first-run.md, before the command and the table.
HEAD = """\
# The first run

Get from a clone to a verdict:

```sh
git clone REPOSITORY scaleproof && cd scaleproof
bash scripts/run.sh suites   # installs into .venv, then runs: pytest suites/
```

The first line of the screen has the result, and the last lines name the page and the next command.
[Reports](reports.md) explains the screen. On two cores the run takes about 4 minutes. Other programs
on the machine make it slower, and can leave thresholds undecided (INCONCLUSIVE, exit status 10).

## Effect of background load
"""
#: Finds the known efficiency in the name of a case.
PLANTED = re.compile(r"paced\.plant=2:([\d.]+)")
BURSTS = "bursts"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of ``pytest suites/``.

    ``foretold`` is its total time as predicted at half time, divided by the actual time.
    """

    beside: str
    run: RunRecord
    seconds: float
    exit: int
    foretold: float | None

    @property
    def decided(self) -> int:
        return tally(self.run).total - tally(self.run).undecided

    @property
    def wrong(self) -> int:
        """The number of wrong verdicts: FAIL and ERROR, because all thresholds are met on a quiet
        machine.
        """
        return tally(self.run).failed + tally(self.run).errors

    @property
    def planted(self) -> list[bool]:
        """Whether the interval contains the known efficiency, for each of them."""
        listed = []
        for v in required(self.run):
            plant = PLANTED.search(v.case)
            if plant and v.low is not None and v.high is not None:
                listed.append(v.low <= float(plant[1]) <= v.high)
        return listed


def burn(beside: str) -> None:
    """Compute for a share of the time, or in bursts, until this process is killed."""
    while True:
        bursts = beside == BURSTS
        busy_s = random.uniform(1, 8) if bursts else 0.05 * float(beside)
        began = time.perf_counter()
        while time.perf_counter() - began < busy_s:
            sum(range(2000))
        time.sleep(random.uniform(1, 8) if bursts else 0.05 - busy_s)


@contextmanager
def neighbour(beside: str) -> Iterator[None]:
    """Run another program on this machine within this context."""
    if beside == "0":
        yield
        return
    other = subprocess.Popen([sys.executable, __file__, "--burn", beside])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def job(results: Path, beside: str) -> Job:
    """Run ``pytest suites/`` once, and read its record."""
    with neighbour(beside):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "suites/", "--results", str(results)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
    (folder,) = results.glob("runs/*/*")
    (folder / "stdout.txt").write_text(done.stdout)
    (folder / "job.txt").write_text(f"{beside} {seconds} {done.returncode}")
    return read(folder)


def read(folder: Path) -> Job:
    """Read a run that ``job`` made."""
    beside, seconds, status = (folder / "job.txt").read_text().split()
    run, loaded = load(folder), (folder / "stdout.txt").read_text()
    verdicts_read = [
        (_seconds(m[1]), _seconds(m[2])) for m in re.finditer(r"(\d+:\d+)  ETA (\d+:\d+)", loaded)
    ]
    half = [at + left for at, left in verdicts_read if at >= run.elapsed_s / 2]
    foretold = half[0] / run.elapsed_s if half else None
    return Job(beside=beside, run=run, seconds=float(seconds), exit=int(status), foretold=foretold)


def _seconds(text: str) -> float:
    minutes, seconds = text.split(":")
    return 60 * int(minutes) + int(seconds)


def table(jobs: list[Job]) -> str:
    """Return the page of docs/, with a row for each kind of background load."""
    machine, torch = jobs[0].run.machine, jobs[0].run.software.get("torch", "")
    day = datetime.date.fromisoformat(jobs[0].run.started_at[:10])
    runs = max(sum(j.beside == beside for j in jobs) for beside in {j.beside for j in jobs})
    total = tally(jobs[0].run).total
    out = [
        HEAD,
        f"`python benchmarks/experiments/first_run.py --runs {runs}` on {machine.num_cores} cores of"
        f" {machine.cpu}, torch {torch}, {day}, runs `pytest suites/` together with another program. That"
        " program uses a share of one core, or computes and sleeps for 1 to 8 s in turn like a build.", "",
        f"| background load | runs | decided of {total} | wrong verdicts | known efficiency in its interval |"
        " time | exit | error of the predicted time |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for beside in dict.fromkeys(j.beside for j in jobs):
        mine = [j for j in jobs if j.beside == beside]
        planted = [hit for j in mine for hit in j.planted]
        off = [f"{j.foretold - 1:+.0%}" for j in mine if j.foretold is not None]
        name = {"0": "nothing", BURSTS: "bursts of one core"}.get(beside, f"{beside} of one core")
        out.append(
            f"| {name} | {len(mine)} | {', '.join(str(j.decided) for j in mine)} |"
            f" {sum(j.wrong for j in mine)} | {sum(planted)} of {len(planted)} |"
            f" {', '.join(duration(j.seconds) for j in mine)} |"
            f" {', '.join(str(j.exit) for j in mine)} | {', '.join(off) or 'n/a'} |"
        )
    shares = [j.decided / tally(j.run).total for j in jobs]
    out += [
        "",
        "A verdict is wrong if it is FAIL or ERROR, because every threshold is met on a quiet machine. An"
        " undecided case reads below its bound because of the load, or lies at the bound; the screen says"
        " which, and what would decide it. The last column compares the total time that the live line"
        f" predicts at half time with the actual time. The median run decides {median(shares):.0%} of the"
        " thresholds.",
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def main() -> None:
    """Make or read the runs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", nargs="+", default=["0", "0.25", "0.5", "0.8", BURSTS])
    parser.add_argument("--from", type=Path, dest="folder")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/first-run.md")
    parser.add_argument("--burn", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.burn:
        burn(parsed.burn)
    keep = parsed.folder or parsed.keep or Path(tempfile.mkdtemp(prefix="first-run-"))
    if parsed.folder is None:
        print(f"records in {keep}")
        for number in range(parsed.runs):
            for beside in parsed.beside:
                results = keep / f"{beside}-{number}"
                if any(results.glob("runs/*/*/job.txt")):
                    continue
                shutil.rmtree(results, ignore_errors=True)  # of an interrupted run
                done = job(results, beside)
                print(f"{beside}: {done.decided} decided, {done.seconds:.0f} s", flush=True)
    jobs = [read(path.parent) for path in sorted(keep.glob("*/runs/*/*/job.txt"))]
    parsed.page.write_text(table(jobs))
    print(parsed.page.read_text())


if __name__ == "__main__":
    main()
