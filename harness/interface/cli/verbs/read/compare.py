"""``compare`` and ``compare-hardware``: two runs on the cases that both ran."""

import argparse
from pathlib import Path

from harness.analysis import compare
from harness.base.documents import to_doc
from harness.base.errors import Exit
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import comparison, text
from harness.record.store import load
from harness.spec.metrics import COMPARABLE

HELP = {
    "compare": "compare two runs on one hardware class",
    "compare-hardware": "compare two machines on the cases that both ran",
}


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("a", type=Path)
    sub.add_argument("b", type=Path)
    usual = "step_s" if verb == "compare" else "throughput"
    sub.add_argument("--metric", default=usual, choices=COMPARABLE)
    sub.add_argument(
        "--fail-on", choices=("worse",), help="exit 1 where B is worse than A in any case"
    )
    if verb == "compare":
        sub.add_argument("--force", action="store_true", help="compare anyway; marks the result")


def act(asked: Asked) -> Answer:
    a, b, metric = load(asked.options.a), load(asked.options.b), asked.options.metric
    if asked.verb == "compare":
        compared = compare.compare(a, b, metric, force=asked.options.force)
    else:
        compared = compare.compare_hardware(a, b, metric)
    both = any(row.ratio is not None for row in compared.rows)
    worse = any(row.reading is compare.Reading.SLOWER for row in compared.rows)
    if asked.options.fail_on and worse:
        status = Exit.FAILED
    else:
        status = Exit.PASSED if both else Exit.NOTHING_JUDGED
    return Answer(
        document=to_doc(compared),
        lines=comparison.lines(a, b, compared, text.columns()),
        exit=status,
    )
