"""``predict``: what larger sizes will reach, from a table's small ones."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.analysis.foresight.held_out import Evaluation, evaluate
from harness.analysis.foresight.outlook import Outlook, outlooks
from harness.analysis.foresight.published.table import Refused, Table, read
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError, nearest
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import foresight, text

HELP = dict(predict="foresee larger sizes from the small ones of a published ladder")
EXAMPLES = dict(
    predict=(
        "predict --table results/published/scaling.json",
        "predict --table ladder.json --to 1024 --hold 0.9",
    ),
)


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    """A file of tables, and a size that none of them has."""
    sub.add_argument("--table", type=Path, required=True, metavar="FILE", help="ladders in JSON")
    sub.add_argument("--only", metavar="ID", help="one table of the file, size by size")
    sub.add_argument("--sizes", action="store_true", help="a row for every size of every table")
    sub.add_argument("--to", type=int, metavar="N", help="also a size of N GPUs")
    sub.add_argument(
        "--hold", type=float, default=0.9, metavar="E",
        help="the efficiency to be held at --to (0.9)",
    )  # fmt: skip


def act(asked: Asked) -> Answer:
    """Errors, coverage and skill; nothing is judged, so that a miss is no failure."""
    said = asked.options
    _check(said)
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
    further = [o for t in tables for o in outlooks(t, said.to, said.hold)] if said.to else []
    width = text.columns()
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


def _check(said: argparse.Namespace) -> None:
    if said.to is not None and said.to < 1:
        raise SpecError(f"--to {said.to}", expected="a number of GPUs", fix="--to 1024")
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
