"""``report``: the tables of a run, and its HTML page."""

import argparse
import shlex
from pathlib import Path

from harness.base.documents import to_doc
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import digest, tables, text
from harness.record.store import load, write_text

HELP = dict(report="print the tables of a run and write its HTML page")


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("run", type=Path)
    sub.add_argument(
        "--every",
        action="store_true",
        help="also a line for every verdict, all of the coverage",
    )
    form = sub.add_mutually_exclusive_group()
    form.add_argument(
        "--markdown", action="store_true", help="a table of verdicts for CI summaries"
    )
    form.add_argument("--csv", action="store_true", help="the verdicts as comma-separated values")
    form.add_argument(
        "--summary", action="store_true", help="with --json: headline and verdicts, not the record"
    )


def act(asked: Asked) -> Answer:
    """Print the tables, write the page beside the record."""
    given = asked.options
    if given.markdown or given.csv or given.summary:
        run = load(given.run)
        lines = digest.table(run) if given.csv else digest.markdown(run)
        return Answer(document=digest.document(run), lines=lines)
    return of_run(given.run, every=given.every)


def of_run(path: Path, *, every: bool = False) -> Answer:
    from harness.interface.report.html import render

    run = load(path)
    file = (path if path.is_dir() else path.parent) / "report.html"
    page: Path | None = file
    try:
        write_text(file, render(run))
    except PermissionError:
        page = None
    rerun = shlex.join(run.settings.argv)
    lines = tables.summary(run, path, rerun, text.columns(), every=every, page=page)
    if every:
        lines += ["", *tables.verdict_lines(run, text.columns(), every=True)]
    return Answer(document=to_doc(run), lines=lines)
