"""The command ``report``: print the tables of a run and write its HTML page."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis import verify_cache
from harness.analysis.reading import load
from harness.analysis.results import Tally
from harness.analysis.verify import refuse_unsealed
from harness.base import documents
from harness.base.documents import Json
from harness.base.errors import ScaleproofError
from harness.interface.cli.answer import Answer, Asked, doubted
from harness.interface.report import digest, screen, tables, text
from harness.record import RunRecord
from harness.record.store import write_text

HELP = {
    "report": "show the result of a run, and write its HTML page",
}
EXAMPLES = {
    "report": (
        "report RUN",
        "report RUN --every",
    ),
}


class Files(TypedDict):
    files: Sequence[str]


class ResultRow(TypedDict):
    """A result as ``harness.analysis.results.document`` writes it."""

    status: str
    plan: str
    case: str
    world: str
    metric: str
    against: str
    value: float | None
    low: float | None
    high: float | None
    measured_low: float | None
    measured_high: float | None
    widened: str
    bound: str
    rule: str | None
    n: int
    reason: str
    detail: str
    remedy: str
    more: int | None
    mde: float | None
    p95: float | None
    worst: float | None
    sd: float | None
    lag1: float | None
    evidence: float | None
    waived: bool
    simulated: bool
    stand_in: bool
    required: bool
    contrast: str
    case_hash: str
    caveats: Sequence[str]
    reproducible: bool | None


class Summary(TypedDict):
    run: str
    started_at: str
    complete: bool
    machine: str
    headline: str
    requirements: Tally
    why: Sequence[str]
    exit: int
    decide: Sequence[str]
    remarks: Sequence[str]
    verdicts: Sequence[ResultRow]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "report": (RunRecord, Summary, Files),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("run", type=Path)
    sub.add_argument(
        "--every",
        action="store_true",
        help="also print a line for every verdict, and the whole coverage",
    )
    form = sub.add_mutually_exclusive_group()
    form.add_argument(
        "--markdown", action="store_true", help="print a table of verdicts for CI summaries"
    )
    form.add_argument(
        "--csv", action="store_true", help="print the verdicts as comma-separated values"
    )
    form.add_argument(
        "--proposal",
        action="store_true",
        help="write a plot, a table and a paragraph on method for a compute time proposal",
    )
    form.add_argument(
        "--summary",
        action="store_true",
        help="with --json: print headline and verdicts instead of the record",
    )


def act(asked: Asked) -> Answer:
    """Return the output in the requested form, and write the page next to the record."""
    given = asked.options
    if given.markdown or given.csv or given.summary:
        run, doubt = verify_cache.vouched(given.run)
        lines = digest.table(run) if given.csv else digest.markdown(run)
        answer = Answer(document=digest.document(run), lines=lines)
        return doubted(answer, [(given.run, doubt)], table=given.csv)
    if given.proposal:
        return _proposal(given.run)
    return of_run(given.run, every=given.every)


def _proposal(path: Path) -> Answer:
    """Write the proposal's text and plot next to the record, and return the text."""
    from harness.interface.report.page.scaling_charts import speedup

    run = load(path)
    folder = path if path.is_dir() else path.parent
    if not (plot := speedup(run)):
        raise ScaleproofError(
            "the run has only one world size above its baseline, but a plot needs two",
            where=str(path),
            expected="a scaling sweep up to four ranks or more",
            fix="scaleproof run --script --cpus 4 -- train.py",
        )
    refuse_unsealed(run, folder)  # readers get the proposal without the record and cannot verify it
    lines = digest.proposal(run, "proposal.svg")
    write_text(folder / "proposal.svg", plot)
    write_text(folder / "proposal.md", "\n".join(lines) + "\n")
    document: Json = {"files": [str(folder / f"proposal.{end}") for end in ("md", "svg")]}
    return Answer(document=document, lines=[*lines, "", f" written  {folder}/proposal.md, .svg"])


def of_run(path: Path, *, every: bool = False) -> Answer:
    """Return the screen of a run, or with ``every`` all tables, and write its page."""
    with documents.paused():  # records and pages have no cycles, so garbage collection can wait
        return _of_run(path, every=every)


def _of_run(path: Path, *, every: bool) -> Answer:
    from harness.interface.report.page import page as pages

    run, doubt = verify_cache.vouched(path)
    page = pages.write(run, path if path.is_dir() else path.parent)
    rerun = shlex.join(run.settings.argv)
    width = text.columns()
    if every:
        lines = tables.summary(run, path, rerun, width, page=page)
    else:
        lines = screen.lines(run, path, rerun, width, page=page)
    return doubted(Answer(document=run, lines=lines), [(path, doubt)])
