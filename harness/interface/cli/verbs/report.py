"""``report``: the tables of a run, and its HTML page."""

import argparse
import contextlib
import shlex
from pathlib import Path

from harness.base.documents import to_doc
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import tables, text
from harness.record.store import load, write_text

HELP = dict(report="print the tables of a run and write its HTML page")


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("run", type=Path)
    sub.add_argument("--every", action="store_true", help="also print a line for every verdict")


def act(asked: Asked) -> Answer:
    """Print the tables, write the page beside the record."""
    return of_run(asked.options.run, every=asked.options.every)


def of_run(path: Path, *, every: bool = False) -> Answer:
    from harness.interface.report.html import render

    run = load(path)
    page = (path if path.is_dir() else path.parent) / "report.html"
    lines = tables.summary(run, path, shlex.join(run.settings.argv), text.columns())
    if every:
        lines += ["", *tables.verdict_lines(run, text.columns(), every=True)]
    with contextlib.suppress(PermissionError):
        write_text(page, render(run))
        lines.append(f" page       {page}")
    return Answer(document=to_doc(run), lines=lines)
