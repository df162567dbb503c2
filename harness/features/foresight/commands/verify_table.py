"""The command ``verify table``: check whether the figures of a published table are consistent."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from harness.base import files
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError, meant
from harness.features.foresight import claims
from harness.features.foresight.claims import (
    ClaimedColumn,
    ClaimFinding,
    ClaimFinding as Claim,
    ClaimStatus,
    Row,
    StatedTable,
)
from harness.features.foresight.published.files import documents
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text

#: Similarity from which on a heading is taken for a misspelt one.
ALIKE = 0.85

HELP = {
    "verify table": "check whether the figures of a published table are consistent",
}
EXAMPLES = {
    "verify table": (
        "verify table examples/audit/claims.md",
        "verify table examples/audit/near-linear.toml --page near-linear.html",
    ),
}


class Audited(TypedDict):
    rows: Sequence[Claim]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "verify table": (Audited,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments for the file of the table and for the page."""
    sub.add_argument("file", type=Path, help="JSON, CSV, a Markdown table, or TOML with [[row]]")
    sub.add_argument("--page", type=Path, metavar="FILE", help="also write an HTML page")


def act(asked: Asked) -> Answer:
    """Return a line for each row; exit with 1 if a row contradicts another row."""
    path: Path = asked.options.file
    tables = documents(path, "scaleproof verify table TABLE.csv")
    ladders = [table for table in tables if len(tables) == 1 or _has_ranks(table)] or tables
    rows, findings, unread = _audited(ladders, path, alone=len(tables) == 1)
    wrong = any(finding.status is ClaimStatus.INCONSISTENT for finding in findings)
    # The check of the smallest row against itself always passes, so it checks no claim.
    checked = any(
        not check.endswith("the smallest row over itself")
        for finding in findings
        for check in finding.checked
    )
    exit_ = Exit.FAILED if wrong else Exit.PASSED if checked else Exit.NOTHING_JUDGED
    lines = _lines(rows, findings)
    lines += [line for reason in unread for line in text.wrap(f" {reason}", text.columns(), 3)]
    if others := len(tables) - len(ladders):
        lines.append(
            f" {others} other table{'s' * (others > 1)} without a number of ranks: not read"
        )
    if asked.options.page is not None:
        from harness.features.foresight.report.audited import render

        about = {"title": path.name, **(tables[0] if len(tables) == 1 else {})}
        files.put(asked.options.page, render(about, rows, findings).encode(), "--page")
        lines.append(f" page     {asked.options.page}")
    return Answer(document={"rows": to_doc(tuple(findings))}, lines=lines, exit=exit_)


def _audited(
    ladders: Sequence[Any], path: Path, *, alone: bool
) -> tuple[list[Row], list[ClaimFinding], list[str]]:
    """Return the rows of all tables, their findings, and a sentence on each unreadable table.

    Raise SpecError if no table can be read. ``alone`` states that the file has one table only.
    """
    rows = list[Row]()
    findings = list[ClaimFinding]()
    unread: list[str] = []
    for table in ladders:
        try:
            stated = _read(table, path)
        except SpecError as error:
            if alone:
                raise
            unread.append(f"{table.get('id', 'a table')}: not read, {error.what}")
            continue
        of_table = claims.audit(stated.rows, stated.kinds, stated.names, stated.doubts)
        name = "" if alone else table.get("id", "")
        findings += [replace(finding, kind=_joined(name, finding.kind)) for finding in of_table]
        rows += stated.rows
    if not findings:
        raise SpecError(
            f"no table could be read: {unread[0]}",
            where=str(path),
            expected="a table with a number of ranks, and a time, a rate or a speedup",
            fix="scaleproof verify table TABLE.csv",
        )
    return rows, findings, unread


def _has_ranks(table: Any) -> bool:
    """Return whether a table has rows with a number of ranks and another figure."""
    points = table.get("points") if isinstance(table, Mapping) else None
    if not isinstance(points, list) or not all(isinstance(row, Mapping) for row in points):
        return False
    stated = claims.stated_table({"points": points})
    return any(ClaimedColumn.RANKS in row and len(row) > 1 for row in stated.rows)


def _joined(table: str, kind: str) -> str:
    return ", ".join(part for part in (table, kind) if part)


def _read(table: Any, path: Path) -> StatedTable:
    """Return the figures of a table and the kind of each row; raise SpecError if it has none."""
    points = table.get("points") if isinstance(table, Mapping) else None
    if not isinstance(points, list) or not all(isinstance(row, Mapping) for row in points):
        points = []
    stated = claims.stated_table({"points": points} if not points else table)
    if not any(stated.rows):
        raise SpecError(
            "the table has no known column" if points else "the file contains no table",
            where=str(path),
            expected=f"headings such as {', '.join(claims.NAMES)}",
            fix="scaleproof verify table TABLE.csv",
        )
    _refuse_unread(table, points, path)
    _refuse_nonsense(stated.rows, path)
    if any(point.get("kind") for point in points) and not all(stated.kinds):
        raise SpecError(
            f"row {stated.kinds.index('') + 1} has no kind, but other rows have one",
            where=str(path),
            expected="a kind in every row, because kinds of step times cannot be compared",
            fix='kind = "step"',
        )
    return stated


def _refuse_unread(
    table: Mapping[str, Any], points: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Raise SpecError for figures that would be ignored or misread.

    There are three such cases: a misspelt heading, figures in a list that is neither ``row`` nor
    ``points``, and times of which only some have a unit.
    """
    for heading in dict.fromkeys(str(name) for point in points for name in point):
        hint = "" if " - " in heading or " " in heading else _meant(heading)
        if claims.column(heading) is None and hint:
            raise SpecError(
                f"there is no column {heading!r}: {hint}", where=str(path), fix=f"edit {path}"
            )
    for key, value in table.items():
        if key not in ("points", "row") and isinstance(value, list) and _has_figures(value):
            raise SpecError(
                f"[[{key}]] is not a list of rows",
                where=str(path),
                expected="[[row]]",
                fix=f"edit {path}",
            )
    cells = [
        str(cell)
        for point in points
        for name, cell in point.items()
        if claims.column(str(name)) is ClaimedColumn.TIME and not isinstance(cell, list)
    ]
    with_unit = [cell for cell in cells if claims.unit_in(cell)]
    if with_unit and len(with_unit) < len(cells):
        raise SpecError(
            f"{with_unit[0]!r} has a unit, but other times have none",
            where=str(path),
            expected="a unit in all rows or in none",
            fix=f"edit {path}",
        )


def _meant(heading: str) -> str:
    """Return which column a misspelt heading means, or an empty string."""
    hint = meant(heading, claims.NAMES)
    near = hint.partition("'")[2].rstrip("'?")
    same = difflib.SequenceMatcher(None, heading.lower(), near).ratio()
    return hint if same > ALIKE else ""


def _has_figures(rows: Sequence[Any]) -> bool:
    return any(
        isinstance(row, Mapping) and any(claims.column(str(name)) for name in row) for row in rows
    )


def _refuse_nonsense(rows: Sequence[Row], path: Path) -> None:
    for number, row in enumerate(rows, 1):
        if wrong := claims.nonsense(row):
            raise SpecError(
                f"row {number}: {wrong} is impossible for a training run",
                where=str(path),
                expected="whole numbers of ranks from 1 on, and times and rates above zero",
                fix=f"edit {path}, then: scaleproof verify table {path}",
            )


def _lines(rows: Sequence[Row], findings: Sequence[ClaimFinding]) -> list[str]:
    width = text.columns()
    lines: list[str] = []
    for kind in dict.fromkeys(f.kind for f in findings):
        lines += [f" {kind}"] if kind else []
        of_kind = [(r, f) for r, f in zip(rows, findings, strict=True) if f.kind == kind]
        base = min(
            (r for r, _ in of_kind if ClaimedColumn.RANKS in r),
            key=lambda r: r[ClaimedColumn.RANKS].middle,
            default=None,
        )
        above = ""
        for row, finding in of_kind:
            why = "; ".join(finding.why) or f"{len(finding.checked)} checks pass"
            why, above = ("as above", why) if finding.why and why == above else (why, why)
            lost = None
            if base is not None and ClaimedColumn.RANKS in row:
                lost = claims.unexplained(row, base)
            if lost is not None and lost > 0.02:
                why += f"; no stated term explains a loss of {100 * lost:.1f}% of the ideal"
            lines += text.wrap(f" {finding.row:<10} {finding.status:<13} {why}", width, 25)
            if finding.speedup is not None and row is not base:
                lines += text.wrap(f"{'':25}{_follows(finding)}", width, 25)
    count = {status: sum(f.status is status for f in findings) for status in ClaimStatus}
    lines += ["", f" {', '.join(f'{value} {status}' for status, value in count.items() if value)}"]
    if count[ClaimStatus.INCONSISTENT]:
        meaning = (
            " a figure is called inconsistent only if it cannot be explained by rounding, weak"
            " scaling, rates per rank or another baseline"
        )
        lines += text.wrap(meaning, width, 1)
    return lines


def _follows(finding: ClaimFinding) -> str:
    """Return the speedup and efficiency that the times of a row give, within their rounding."""
    assert finding.speedup is not None
    low, high = finding.speedup
    words = f"its times give a speedup of {low:.3f} to {high:.3f}"
    if finding.efficiency is not None:
        low, high = finding.efficiency
        words += f", an efficiency of {low:.3f} to {high:.3f}"
    if finding.between_launches is not None:
        low, high = finding.between_launches
        words += f"; with launch-to-launch variation, {low:.2f} to {high:.2f} (95 %)"
    return words
