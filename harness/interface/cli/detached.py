"""Runs left to Slurm's queue: ``run --detach``, then ``status``, ``cancel`` and ``collect``.

The whole run becomes one batch job: its program runs on the first node and starts its agents inside
the allocation. What is known of a job lies in ``RESULTS/engine/NAME/job.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError, SpecError
from harness.launch.engine import Command, Deployment
from harness.launch.engines import slurm
from harness.record.store import write_text
from harness.spec.site import Site

#: Tells a run that came out of the queue since when it was in it, in seconds of the epoch.
SUBMITTED = "SCALEPROOF_SUBMITTED"


@dataclass(frozen=True, kw_only=True)
class Detached:
    """One submitted run."""

    job: str
    submitted_at: str
    argv: tuple[str, ...]
    log: str


def add_to(
    status: argparse.ArgumentParser,
    cancel: argparse.ArgumentParser,
    collect: argparse.ArgumentParser,
) -> None:
    """The options of the three verbs."""
    status.add_argument("job", nargs="?", help="only this one")
    for sub in (cancel, collect):
        sub.add_argument("job")
    for sub in (status, cancel, collect):
        sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")


def act(parsed: argparse.Namespace) -> tuple[Json, list[str]]:
    """``status`` or ``cancel``."""
    return (status if parsed.verb == "status" else cancel)(parsed.results, parsed.job)


def submit(
    site: Site, settings: Mapping[str, Json], arguments: Sequence[str], results: Path
) -> tuple[Json, list[str]]:
    """Put the run that these arguments ask for into the queue."""
    if site.engine != "slurm":
        raise SpecError(
            f"--detach with --engine {site.engine}", expected="--engine slurm",
            fix="--engine slurm --nodes 2 --gpus 16",
        )  # fmt: skip
    now = datetime.datetime.now(datetime.UTC)
    folder = (results / "engine" / f"detached-{now:%Y%m%d-%H%M%S-%f}").absolute()
    deployment = Deployment(
        nodes=site.nodes, device=site.device, join="", token_file=Path(), folder=folder,
        python=settings.get("python") or sys.executable, settings=settings,
    )  # fmt: skip
    rest = [a for a in arguments if a != "--detach"]
    since = f"{SUBMITTED}={now.timestamp():.0f}"
    command = ["env", since, deployment.python, "-m", "harness", *rest]
    command += ["--results", str(results.absolute())]
    path = folder / "job.sbatch"
    text = slurm.script(deployment, command, everywhere=False)
    job = slurm.submit(
        Command(nodes=(), argv=("sbatch", "--parsable", str(path)), files={str(path): text})
    )
    made = Detached(
        job=job,
        submitted_at=now.isoformat(timespec="seconds"),
        argv=("scaleproof", *arguments),
        log=str(folder / "slurm.log"),
    )
    write_text(folder / "job.json", json.dumps(to_doc(made), indent=1) + "\n")
    lines = [f" job {job} is in the queue", f" status   scaleproof status {job}{_where(results)}"]
    return to_doc(made), lines


def notes() -> list[str]:
    """How long this run has been in the queue, for its record, where it was."""
    since = os.environ.pop(SUBMITTED, "")
    return [f"engine: {max(0.0, time.time() - float(since)):.0f} s in the queue"] if since else []


def _where(results: Path) -> str:
    return "" if results == Path("results") else f" --results {shlex.quote(str(results))}"


def known(results: Path, job: str | None = None) -> list[Detached]:
    """The runs that were submitted from here, oldest first; SpecError for a job that was not."""
    paths = sorted(results.glob("engine/detached-*/job.json"))
    found = [from_doc(Detached, json.loads(path.read_text())) for path in paths]
    wanted = [d for d in found if job in (None, d.job)]
    if job is not None and not wanted:
        raise SpecError(
            f"job {job} was not submitted from here", where=str(results),
            expected=", ".join(d.job for d in found) or "--results of the run",
            fix="scaleproof status",
        )  # fmt: skip
    return wanted


def status(results: Path, job: str | None) -> tuple[Json, list[str]]:
    """A line for each: its state in the queue, and the last thing that it said."""
    document, lines = [], []
    for d in known(results, job):
        word, why = slurm.state_of(d.job)
        state = word.lower() or "over"
        said = _said(d)
        document.append({**to_doc(d), "state": state, "reason": why, "said": said[-1:]})
        reason = f" ({why})" if why not in ("", "None") else ""
        lines.append(f" {d.job:>6}  {state}{reason}  {shlex.join(d.argv)}")
        lines += [f"         {line.strip()}" for line in said[-1:]]
    return document, lines or [" no detached run is known here"]


def cancel(results: Path, job: str) -> tuple[Json, list[str]]:
    """Take a run out of the queue or end it; what it measured is kept."""
    (found,) = known(results, job)
    slurm.cancel(found.job)
    return {"job": job}, [f" job {job} is gone; what it measured: scaleproof collect {job}"]


def collect(results: Path, job: str) -> Path:
    """The folder of a run that is over; LaunchError if it is not, or left nothing."""
    (found,) = known(results, job)
    word, _ = slurm.state_of(job)
    if word:
        raise LaunchError(
            f"job {job} is {word.lower()}", expected="a job that is over",
            fix=f"scaleproof status {job}",
        )  # fmt: skip
    said = "\n".join(_said(found))
    match = re.search(r"scaleproof report (\S+)", said)
    if match is None:
        raise LaunchError(
            f"job {job} left no record: {said.splitlines()[-1] if said else 'it said nothing'}",
            expected="a run that got as far as its first launch", fix=f"less {found.log}",
        )  # fmt: skip
    return Path(match[1])


def _said(found: Detached) -> list[str]:
    path = Path(found.log)
    text = path.read_text(errors="replace") if path.is_file() else ""
    return [line for line in text.splitlines() if line.strip()]
