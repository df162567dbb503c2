"""``ingest``: runs into the asv history."""

import argparse
from pathlib import Path

from harness.base.documents import to_doc
from harness.base.errors import Exit
from harness.interface.cli.answer import Answer, Asked

HELP = dict(ingest="add runs to the asv history")


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    """Runs, and where the history lies."""
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")


def act(asked: Asked) -> Answer:
    """A line for each machine that got values."""
    from harness.analysis.history.ingest import ingest, summary

    added = ingest(asked.options.runs, asked.options.results)
    lines = [f" {summary(x)}" for x in added]
    lines += ["", " next     scaleproof history; asv publish && asv preview"]
    machines = sorted({x.machine for x in added})
    lines += [f" compare  asv compare main~1 main --machine {m}" for m in machines]
    exit_ = Exit.PASSED if added else Exit.NOTHING_JUDGED
    return Answer(document={"series": to_doc(tuple(added))}, lines=lines, exit=exit_)
