"""The command ``report export``: write the values of runs to a file for other programs."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.analysis.verify import unsealed
from harness.base import files
from harness.base.errors import SpecError
from harness.interface.cli.answer import Answer, Asked, doubted

HELP = {
    "report export": "write launches, steps, points, verdicts or budgets to a file",
}
EXAMPLES = {
    "report export": (
        "report export RUN_A RUN_B --table launches --to launches.parquet",
        "report export RUN --to scaleproof.prom",
    ),
}
#: Names of the tables. The name says what a row describes. The first table is the default.
_UNITS = {".prom": "samples", ".yaml": "sizes"}
_TABLES = ("launches", "steps", "points", "verdicts", "budgets")


class Exported(TypedDict):
    file: str
    rows: int


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "report export": (Exported,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file to write: .csv, .jsonl, .parquet, .prom (OpenMetrics) or .yaml"
        " (Megatron-Bridge's verification card)",
    )
    sub.add_argument(
        "--table",
        choices=_TABLES,
        help=f"what each row describes (default: {_TABLES[0]}; not allowed with .prom)",
    )


def act(asked: Asked) -> Answer:
    from harness.interface import cards, export

    args = asked.options
    if (form := args.to.suffix) not in export.FORMS:
        raise SpecError(
            f"--to {args.to}: this file type is not supported",
            expected=", ".join(export.FORMS),
            fix=f"--to {args.to.stem}.csv",
        )
    records = [load(path) for path in args.runs]  # reports a bad path before it imports pandas
    runs = [path if path.is_dir() else path.parent for path in args.runs]
    doubts = list(map(unsealed, records, runs))
    if form in (".prom", ".yaml"):
        if args.table:
            raise SpecError(
                f"--table does not apply to {form}, whose file contains all cases",
                fix=f"scaleproof report export {args.runs[0]} --to {args.to}",
            )
        if form == ".yaml":
            body = cards.card(records, runs)
            count = body.count(b"num_gpus:")
        else:
            body = export.openmetrics(records, doubts).encode()
            count = sum(not line.startswith(b"#") for line in body.splitlines())
    else:
        frame = export.TABLES[args.table or _TABLES[0]](runs)
        body = export.table(frame, form)
        count = len(frame)
    files.put(args.to, body, "--to")
    answer = Answer(
        document={"file": str(args.to), "rows": count},
        lines=[f" {args.to}: {count} {_UNITS.get(form, 'rows')}"],
    )
    return doubted(answer, list(zip(args.runs, doubts, strict=True)))
