"""Runs in the queue of a scheduler: ``run --detach`` and the commands ``jobs ...``.

The whole run becomes one batch job: its program runs on the first node and starts its agents inside
the allocation. The file ``RESULTS/engine/NAME/job.json`` describes the job.
"""

import argparse
import datetime
import json
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.base import programs
from harness.base.documents import from_doc, to_doc
from harness.base.errors import Exit, LaunchError, SpecError
from harness.cases import Catalogue, Site
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.commands import report
from harness.launch.deploy import python_of
from harness.launch.engine import Deployment, Queue, queue_of
from harness.record import RunRecord
from harness.record.store import write_text

HELP = {
    "jobs": "show runs in the queue of a scheduler (run --detach)",
    "jobs cancel": "cancel a queued run; its measurements are kept",
    "jobs collect": "print the result of a detached run that has ended",
}
EXAMPLES = {
    "jobs": (
        "jobs",
        "jobs 4711",
    ),
    "jobs cancel": (
        "jobs cancel 4711",
        "jobs cancel 4711 --results DIR",
    ),
    "jobs collect": (
        "jobs collect 4711",
        "jobs collect 4711 --json",
    ),
}
#: Commands that need not verify a record, and why.
UNVOUCHED = {
    "jobs": "it lists jobs and reads no record",
    "jobs cancel": "it ends a job and reads no record",
}
#: Environment variable that gives a detached run its time of submission, in seconds of the epoch.
SUBMITTED = "SCALEPROOF_SUBMITTED"


class Cancelled(TypedDict):
    job: str


class ShownJob(TypedDict):
    job: str
    engine: str
    submitted_at: str
    argv: Sequence[str]
    log: str
    state: str
    reason: str
    said: Sequence[str]


class Jobs(TypedDict):
    jobs: Sequence[ShownJob]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "jobs cancel": (Cancelled,),
    "jobs collect": (RunRecord,),
    "jobs": (Jobs,),
}


@dataclass(frozen=True, kw_only=True)
class Detached:
    job: str
    submitted_at: str
    argv: tuple[str, ...]
    log: str
    engine: str = "slurm"


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the job and the results folder from which it was submitted."""
    if command == "jobs":
        sub.add_argument("job", nargs="?", help="show only this job")
    else:
        sub.add_argument("job")
    options.add_results(sub)


def act(asked: Asked) -> Answer:
    """Show, cancel or collect detached runs."""
    results, job = asked.options.results, asked.options.job
    if asked.command == "jobs":
        return status(results, job)
    if asked.command == "jobs cancel":
        return cancel(results, job)
    folder = collect(results, job)
    shown = report.of_run(folder)
    if shown.exit is not Exit.PASSED:
        return shown  # the run is not verified, so its verdicts decide nothing
    return replace(shown, exit=load(folder).exit_status)


def submit(asked: Asked, catalogue: Catalogue, site: Site) -> Answer:
    """Submit the requested run to its engine's queue, or with ``--dry-run`` return the script."""
    entry = catalogue.get("engines", site.engine)
    if not entry.engine.queues:
        queues = [name for name, e in catalogue.entries["engines"].items() if e.engine.queues]
        raise SpecError(
            f"--engine {site.engine} has no queue, which --detach needs",
            expected=f"--engine {' or '.join(queues)}",
            fix=f"--engine {queues[0]} --nodes 2 --gpus 16",
        )
    results = measuring.results(asked).absolute()
    settings = options.engine_settings(measuring.values(asked), catalogue)
    now = datetime.datetime.now(datetime.UTC)
    folder = results / "engine" / f"detached-{now:%Y%m%d-%H%M%S-%f}"
    deployment = Deployment(
        nodes=site.nodes,
        device=site.device,
        join="",
        token_file=Path(),
        folder=folder,
        python=python_of(settings),
        settings=settings,
    )
    rest = _into(asked.words, results)
    since = f"{SUBMITTED}={now.timestamp():.0f}"
    command = ["env", since, *deployment.python, *programs.MODULE, "harness", *rest]
    queue = queue_of(entry)
    if asked.options.dry_run:
        script = queue.left(deployment, command)
        return Answer(document={"script": script}, lines=script.splitlines())
    detached = Detached(
        job=queue.leave(deployment, command),
        engine=site.engine,
        submitted_at=now.isoformat(timespec="seconds"),
        argv=("scaleproof", *asked.words),
        log=str(queue.log(folder)),
    )
    write_text(folder / "job.json", json.dumps(to_doc(detached), indent=1) + "\n")
    where = "" if asked.options.results is None else f" --results {shlex.quote(str(results))}"
    lines = [
        f" job {detached.job} is in the queue",
        f" status   scaleproof jobs {detached.job}{where}",
    ]
    return Answer(document=to_doc(detached), lines=lines)


def _into(words: Sequence[str], results: Path) -> list[str]:
    """Return the command for the job, without ``--detach`` and with an absolute results folder."""
    end = words.index("--") if "--" in words else len(words)
    rest = list[str]()
    skip = False
    for word in words[:end]:
        known = skip or word in ("--detach", "--dry-run", "--results")
        if not known and not word.startswith("--results="):
            rest.append(word)
        skip = word == "--results"
    return [*rest, "--results", str(results), *words[end:]]


def notes() -> list[str]:
    """Return a note on the time that this run was queued, or nothing if it was not detached."""
    since = os.environ.pop(SUBMITTED, "")
    return [f"engine: {max(0.0, time.time() - float(since)):.0f} s in the queue"] if since else []


def known(results: Path, job: str | None = None) -> list[Detached]:
    """Return the detached runs of a results folder, oldest first, or only one of them.

    Raise SpecError for an unknown job.
    """
    paths = sorted(results.glob("engine/detached-*/job.json"))
    submitted = [from_doc(Detached, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    wanted = [detached for detached in submitted if job in (None, detached.job)]
    if job is not None and not wanted:
        raise SpecError(
            f"job {job} was not submitted from here",
            where=str(results),
            expected=", ".join(detached.job for detached in submitted)
            or "the --results folder of the run",
            fix="scaleproof jobs",
        )
    return wanted


def status(results: Path, job: str | None) -> Answer:
    """Return each detached run's state in the queue and the last line of its log."""
    document, lines = [], []
    for detached in known(results, job):
        word, why = _queue(detached).state_of(detached.job)
        state = word.lower() or "over"
        last_words = _said(detached)
        document.append(
            {**to_doc(detached), "state": state, "reason": why, "said": last_words[-1:]}
        )
        reason = f" ({why})" if why not in ("", "None") else ""
        lines.append(f" {detached.job:>6}  {state}{reason}  {shlex.join(detached.argv)}")
        lines += [f"         {line.strip()}" for line in last_words[-1:]]
    return Answer(
        document={"jobs": document}, lines=lines or [" no detached run was submitted from here"]
    )


def cancel(results: Path, job: str) -> Answer:
    """Cancel a queued or running job; its measurements are kept."""
    (detached,) = known(results, job)
    _queue(detached).cancel(detached.job)
    line = f" job {job} is cancelled; to see its measurements: scaleproof jobs collect {job}"
    return Answer(document={"job": job}, lines=[line])


def collect(results: Path, job: str) -> Path:
    """Return the folder of a detached run that has ended.

    Raise LaunchError if it has not ended or left no record.
    """
    (detached,) = known(results, job)
    word, _ = _queue(detached).state_of(job)
    if word:
        raise LaunchError(
            f"job {job} is {word.lower()}",
            expected="a job that has ended",
            fix=f"scaleproof jobs {job}",
        )
    log = "\n".join(_said(detached))
    # The last lines name the run or its page. Hints contain the command, but no existing folder.
    pattern = r"(?:scaleproof report|^ page) +(\S+?)(?:/report\.html)?(?=\s|$)"
    named = re.findall(pattern, log, re.MULTILINE)
    runs = [Path(name) for name in named if Path(name).is_dir()]
    if not runs:
        raise LaunchError(
            f"job {job} left no record: {log.splitlines()[-1] if log else 'its log is empty'}",
            expected="a run that reached its first launch",
            fix=f"less {detached.log}",
        )
    return runs[-1]


def _said(detached: Detached) -> list[str]:
    path = Path(detached.log)
    text = path.read_text(errors="replace", encoding="utf-8") if path.is_file() else ""
    return [line for line in text.splitlines() if line.strip()]


def _queue(detached: Detached) -> Queue:
    return queue_of(Catalogue().get("engines", detached.engine))
