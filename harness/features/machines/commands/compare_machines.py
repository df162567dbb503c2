"""The command ``compare machines``: compare machines on the cases that all of them ran."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.compare import Reading, gate, key_of
from harness.analysis.reading import load
from harness.base import files
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases.metrics import COMPARABLE
from harness.features.machines import machines_table as hardware
from harness.features.machines.machines import HardwareComparison, compare_hardware, names
from harness.interface.cli.answer import Answer, Asked, vouched
from harness.interface.report import text

HELP = {
    "compare machines": "compare machines on the cases that all of them ran",
}
EXAMPLES = {
    "compare machines": (
        "compare machines RUN_A RUN_B RUN_C --page machines.html",
        "compare machines RUN_A RUN_B --price A=98.32 --price B=41.6 --markdown",
    ),
}


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "compare machines": (HardwareComparison,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="two or more runs, named A, B, ..."
    )
    sub.add_argument(
        "--metric", default="throughput", choices=COMPARABLE, help="the metric to compare"
    )
    sub.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="A=PRICE",
        help="price of one hour of all devices of a run, in any currency",
    )
    sub.add_argument(
        "--fail-on",
        choices=("worse",),
        help="exit with 1 if a machine is worse than A in any case, and with 10 if it lacks a case"
        " of A",
    )
    sub.add_argument("--page", type=Path, metavar="FILE", help="also write an HTML page")
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print tables for a CI summary")
    form.add_argument(
        "--csv", action="store_true", help="print comma-separated values by case and machine"
    )


def act(asked: Asked) -> Answer:
    args = asked.options
    if len(args.runs) < 2:
        raise SpecError(
            "only one run was given",
            expected="two or more runs",
            fix=f"scaleproof compare machines {args.runs[0]} OTHER_RUN",
        )
    runs = [load(path) for path in args.runs]
    comparison = compare_hardware(runs, args.metric, _prices(args.price, names(len(runs))))
    lines = (
        hardware.csv(comparison)
        if args.csv
        else hardware.markdown(comparison)
        if args.markdown
        else hardware.lines(comparison, text.columns())
    )
    if args.page is not None:
        from harness.features.machines.machines_page import render

        files.put(args.page, render(comparison).encode(), "--page")
        lines = lines if args.csv or args.markdown else [*lines, f" page     {args.page}"]
    verdict = gate(_readings(comparison)) if args.fail_on else Exit.PASSED
    status = Exit.PASSED if comparison.means else Exit.NOTHING_JUDGED
    answer = Answer(
        document=to_doc(comparison),
        lines=lines,
        exit=verdict or status,
    )
    return vouched(answer, zip(runs, args.runs, strict=True), table=args.csv)


def _readings(comparison: HardwareComparison) -> list[Reading]:
    """Return the readings of all machines against A, including cases that only A measured."""
    first, *others = (
        {key_of(entry.case, True) for entry in comparison.entries if entry.side == side.name}
        for side in comparison.sides
    )
    compared = [entry.reading for entry in comparison.entries if entry.reading is not None]
    return compared + [Reading.ONLY_A for other in others for _ in first - other]


def _prices(given: Sequence[str], known: Sequence[str]) -> list[float | None]:
    prices: list[float | None] = [None] * len(known)
    for word in given:
        match = re.fullmatch(r"([A-Z])=(\d+(?:\.\d+)?)", word)
        if match is None or match[1] not in known or float(match[2]) == 0:
            raise SpecError(
                f"--price {word}",
                expected=f"LETTER=PRICE: one of {', '.join(known)}, and the price of an hour",
                fix="--price A=98.32",
            )
        prices[known.index(match[1])] = float(match[2])
    return prices
