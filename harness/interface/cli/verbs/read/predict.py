"""``predict``: what larger sizes will reach, from the small ones of runs or of a table."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.analysis.foresight.held_out import Evaluation, evaluate
from harness.analysis.foresight.outlook import Outlook, outlooks
from harness.analysis.foresight.published import runs as ladders
from harness.analysis.foresight.published.table import Refused, Table, read
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError, nearest
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import foresight, text
from harness.record.store import load
from harness.spec import Catalogue
from harness.spec.site import parse_nodes

HELP = dict(predict="foresee larger sizes from the small ones of runs, or of a published ladder")
EXAMPLES = dict(
    predict=(
        "predict results/runs/*/* --to 64x8",
        "predict --table ladder.json --to 1024 --hold 0.9",
    ),
)


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    """Runs or a file of tables, and a size that none of them has."""
    sub.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="runs with ladders")
    sub.add_argument("--table", type=Path, metavar="FILE", help="ladders in JSON, instead of runs")
    sub.add_argument("--only", metavar="ID", help="one table of the file, size by size")
    sub.add_argument("--sizes", action="store_true", help="a row for every size of every table")
    sub.add_argument("--to", metavar="N", help="a size that was not measured: 512, or 64x8")
    sub.add_argument(
        "--hold", type=float, default=0.9, metavar="E",
        help="the efficiency to be held at --to (0.9)",
    )  # fmt: skip


def act(asked: Asked) -> Answer:
    """Errors, coverage and skill; nothing is judged, so that a miss is no failure."""
    said = asked.options
    _check(said)
    if said.table is None:
        return _of_runs(said)
    every = read(said.table)
    if said.only is not None:
        every = [t for t in every if t.id == said.only] or _unknown(said, every)
    tables = [t for t in every if isinstance(t, Table)]
    refused = [t for t in every if isinstance(t, Refused)]
    if not tables:
        told = "; ".join(f"{t.id}: {t.why}" for t in refused[:3])
        raise SpecError(
            f"no table can be used ({told})", where=str(said.table),
            expected="points with N, a step time or rate, and calibrate_on",
            fix="scaleproof predict --table results/published/scaling.json",
        )  # fmt: skip
    found = evaluate(tables)
    to, width = _ranks(said.to) if said.to else 0, text.columns()
    further = [o for t in tables for o in outlooks(t, to, said.hold)] if to else []
    lines = foresight.lines(found, refused, said.sizes or len(every) == 1, width)
    for one in further:
        lines += foresight.outlook(one, width)
    if not said.sizes and len(every) > 1:
        lines += ["", f" size by size  scaleproof predict --table {text.shown(said.table)} --sizes"]
    any_ = further or any(p.predicted for p in found.predictions)
    return Answer(
        document=_document(found, refused, further), lines=lines,
        exit=Exit.PASSED if any_ else Exit.NOTHING_JUDGED,
    )  # fmt: skip


def _of_runs(said: argparse.Namespace) -> Answer:
    """What the ladders of runs lead to expect of a size that none of them has."""
    runs, ranks, width = [load(path) for path in said.runs], _ranks(said.to), text.columns()
    every = ladders.tables(runs, Catalogue())
    refused = [t for t in every if isinstance(t, Refused)]
    chosen = [t for t in every if isinstance(t, Table) and said.only in (None, t.id)]
    further = [one for t in chosen for one in outlooks(t, ranks, said.hold)]
    lines = [line for one in further for line in foresight.outlook(one, width)]
    for table in chosen:
        lines += [x for n in table.notes for x in text.wrap(f" {table.id}: {n}", width, 3)]
    lines += [x for t in refused for x in text.wrap(f" REFUSED  {t.id}: {t.why}", width, 10)]
    scores = {"by_table": (), "by_family": (), "whole": None}  # nothing is known beforehand
    document = to_doc({"tables": (), "scores": scores, "outlooks": further, "refused": refused})
    exit_ = Exit.PASSED if further else Exit.NOTHING_JUDGED
    return Answer(document=document, lines=lines, exit=exit_)


def _ranks(words: str | None) -> int:
    """``512``, or ``64x8``: nodes and the ranks on each."""
    try:
        many, shape = parse_nodes(words or "")
    except SpecError:
        raise SpecError(
            f"--to {words or 'is missing'}", expected="a number of GPUs, or nodes and GPUs on each",
            fix="--to 64x8",
        ) from None  # fmt: skip
    return sum(shape) if shape else many


def _check(said: argparse.Namespace) -> None:
    if bool(said.runs) == (said.table is not None):
        raise SpecError(
            "runs and a table" if said.runs else "nothing to learn from",
            expected="runs with ladders, or --table FILE",
            fix="scaleproof predict results/runs/*/* --to 64x8",
        )  # fmt: skip
    if said.to is not None or said.runs:
        _ranks(said.to)
    if not 0 < said.hold < 2:
        raise SpecError(f"--hold {said.hold}", expected="an efficiency above 0", fix="--hold 0.9")


def _unknown(said: argparse.Namespace, every: Sequence[Table | Refused]) -> Any:
    known = [t.id for t in every]
    raise SpecError(
        f"--only {said.only}: no such table{nearest(said.only, known)}", where=str(said.table),
        expected=", ".join(known), fix=f"scaleproof predict --table {said.table}",
    )  # fmt: skip


def _document(
    found: Evaluation, refused: Sequence[Refused], further: Sequence[Outlook]
) -> dict[str, Any]:
    tables = [
        {
            "id": p.table.id, "family": p.table.family, "notes": p.table.notes,
            "taught_by": p.taught_by, "predicted": p.predicted, "refused": p.refused,
        }
        for p in found.predictions
    ]  # fmt: skip
    scores = {"by_table": found.tables, "by_family": found.families, "whole": found.whole}
    document: dict[str, Any] = to_doc(
        {"tables": tables, "scores": scores, "refused": refused, "outlooks": further}
    )
    return document
