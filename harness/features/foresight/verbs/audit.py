"""``audit``: whether a published or a vendor's table holds together."""

import argparse
import csv
import io
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.features.foresight import claims
from harness.features.foresight.claims import (
    ClaimedColumn,
    ClaimFinding,
    ClaimFinding as Claim,
    ClaimStatus,
    Row,
)
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text

HELP = dict(audit="check whether the figures of a published table agree with each other")
EXAMPLES = dict(
    audit=(
        "audit vendor.csv",
        "audit examples/audit/claims.md",
    ),
)


class Audited(TypedDict):
    rows: Sequence[Claim]


#: What each verb prints with ``--json``: a document, or one for each way of asking.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "audit": (Audited,),
}


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    """A table."""
    sub.add_argument("file", type=Path, help="CSV, a Markdown table, or TOML with [[row]]")


def act(asked: Asked) -> Answer:
    """A line for each row; exit 1 where one does not follow from the others."""
    path: Path = asked.options.file
    table = _table(path)
    rows = [_row(line) for line in table]
    if not rows or not any(rows):
        known = ", ".join(ClaimedColumn)
        raise SpecError(
            "no column is known" if table else "no table",
            where=str(path),
            expected=f"headings such as {known}",
            fix="scaleproof audit TABLE.csv",
        )
    checked_rows = claims.audit(rows)
    wrong = any(f.status is ClaimStatus.INCONSISTENT for f in checked_rows)
    checked = any(f.checked for f in checked_rows)
    exit_ = Exit.FAILED if wrong else Exit.PASSED if checked else Exit.NOTHING_JUDGED
    return Answer(
        document={"rows": to_doc(tuple(checked_rows))}, lines=_lines(rows, checked_rows), exit=exit_
    )


def _table(path: Path) -> list[dict[str, str]]:
    """Rows by heading, whatever the file's kind."""
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"cannot be read: {error}",
            where=str(path),
            expected="a text file",
            fix="scaleproof audit TABLE.csv",
        ) from None
    if path.suffix == ".toml":
        try:
            rows = tomllib.loads(content).get("row", [])
        except tomllib.TOMLDecodeError as error:
            raise SpecError(
                f"not valid TOML: {error}",
                where=str(path),
                expected="[[row]] tables",
                fix=f"edit {path}",
            ) from None
        return [{str(k): str(v) for k, v in row.items()} for row in rows]
    if marked := [line for line in content.splitlines() if line.strip().startswith("|")]:
        cells = [[c.strip() for c in line.strip().strip("|").split("|")] for line in marked]
        rows = [c for c in cells if not all(re.fullmatch(r":?-+:?", x) for x in c)]
        return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    return list(csv.DictReader(io.StringIO(content), skipinitialspace=True))


def _row(line: dict[str, str]) -> Row:
    out = {}
    for name, cell in line.items():
        known = claims.column(name or "")
        if known is not None and (seen := claims.figure(str(cell or ""), known)) is not None:
            out[known] = seen
    return out


def _lines(rows: Sequence[Row], found: Sequence[ClaimFinding]) -> list[str]:
    width = text.columns()
    out = []
    base = min(
        (r for r in rows if ClaimedColumn.RANKS in r),
        key=lambda r: r[ClaimedColumn.RANKS].middle,
        default=None,
    )
    for row, checked in zip(rows, found, strict=True):
        words = "; ".join(checked.why) or f"{len(checked.checked)} checks hold"
        lost = (
            None
            if base is None or ClaimedColumn.RANKS not in row
            else claims.unexplained(row, base)
        )
        if lost is not None and lost > 0.02:
            words += f"; {100 * lost:.1f}% of the ideal is lost to nothing that is stated"
        out += text.wrap(f" {checked.row:<10} {checked.status:<13} {words}", width, 25)
    count = {s: sum(f.status is s for f in found) for s in ClaimStatus}
    out += ["", f" {', '.join(f'{n} {s}' for s, n in count.items() if n)}"]
    if count[ClaimStatus.INCONSISTENT]:
        out.append(" a figure is only called inconsistent if no rounding explains it")
    return out
