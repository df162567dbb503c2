"""``audit``: whether a published or a vendor's table holds together."""

import argparse
import csv
import io
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.base import files
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
        "audit examples/audit/claims.md",
        "audit examples/audit/near-linear.toml --page near-linear.html",
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
    sub.add_argument("--page", type=Path, metavar="FILE", help="also write an HTML page")


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
    _refuse_nonsense(rows, path)
    kinds = _kinds(table, path)
    findings = claims.audit(rows, kinds, [row.get("name", "").strip() for row in table])
    wrong = any(f.status is ClaimStatus.INCONSISTENT for f in findings)
    checked = any(f.checked for f in findings)
    exit_ = Exit.FAILED if wrong else Exit.PASSED if checked else Exit.NOTHING_JUDGED
    lines = _lines(rows, findings)
    if asked.options.page is not None:
        from harness.features.foresight.report.audited import render

        page = render(_told(path), rows, findings)
        files.put(asked.options.page, page.encode(), "--page")
        lines.append(f" page     {asked.options.page}")
    return Answer(document={"rows": to_doc(tuple(findings))}, lines=lines, exit=exit_)


def _refuse_nonsense(rows: Sequence[Row], path: Path) -> None:
    for number, row in enumerate(rows, 1):
        if wrong := claims.nonsense(row):
            raise SpecError(
                f"row {number}: {wrong} is of no training",
                where=str(path),
                expected="whole ranks from 1 on, and times and rates above zero",
                fix=f"edit {path}, then: scaleproof audit {path}",
            )


def _kinds(table: Sequence[Mapping[str, str]], path: Path) -> list[str]:
    """Of what each row's times are: block, step, minutes to a target. All rows say it, or none."""
    kinds = [row.get("kind", "").strip() for row in table]
    if any(kinds) and not all(kinds):
        raise SpecError(
            f"row {kinds.index('') + 1} does not say of what its times are",
            where=str(path),
            expected="a kind in every row: two kinds of step time differ by more than a point",
            fix='kind = "step"',
        )
    return kinds


def _told(path: Path) -> dict[str, Any]:
    """What a TOML table says beside its rows: title, claim, and what each kind leaves out."""
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else {"title": path.name}


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
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SpecError(
                "row is no table",
                where=str(path),
                expected="[[row]] tables",
                fix=f"edit {path}",
            )
        return [{str(k): _cell(v) for k, v in row.items()} for row in rows]
    if marked := [line for line in content.splitlines() if line.strip().startswith("|")]:
        cells = [[c.strip() for c in line.strip().strip("|").split("|")] for line in marked]
        rows = [c for c in cells if not all(re.fullmatch(r":?-+:?", x) for x in c)]
        return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    return list(csv.DictReader(io.StringIO(content), skipinitialspace=True))


def _cell(value: Any) -> str:
    """A value of TOML as a table has it: what launches took stands in one cell."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _row(line: dict[str, str]) -> Row:
    out = {}
    for name, cell in line.items():
        if (name or "").strip().lower() == "launches":
            if (mean := claims.mean_of(str(cell or ""), ClaimedColumn.TIME)) is not None:
                out[ClaimedColumn.TIME] = mean
            continue
        known = claims.column(name or "")
        if known is not None and (seen := claims.figure(str(cell or ""), known)) is not None:
            out[known] = seen
    return out


def _lines(rows: Sequence[Row], findings: Sequence[ClaimFinding]) -> list[str]:
    width = text.columns()
    out: list[str] = []
    for kind in dict.fromkeys(f.kind for f in findings):
        out += [f" {kind}"] if kind else []
        of_kind = [(r, f) for r, f in zip(rows, findings, strict=True) if f.kind == kind]
        base = min(
            (r for r, _ in of_kind if ClaimedColumn.RANKS in r),
            key=lambda r: r[ClaimedColumn.RANKS].middle,
            default=None,
        )
        for row, finding in of_kind:
            why = "; ".join(finding.why) or f"{len(finding.checked)} checks hold"
            lost = None
            if base is not None and ClaimedColumn.RANKS in row:
                lost = claims.unexplained(row, base)
            if lost is not None and lost > 0.02:
                why += f"; {100 * lost:.1f}% of the ideal is lost to nothing that is stated"
            out += text.wrap(f" {finding.row:<10} {finding.status:<13} {why}", width, 25)
            if finding.speedup is not None and row is not base:
                out += text.wrap(f"{'':25}{_follows(finding)}", width, 25)
    count = {s: sum(f.status is s for f in findings) for s in ClaimStatus}
    out += ["", f" {', '.join(f'{n} {s}' for s, n in count.items() if n)}"]
    if count[ClaimStatus.INCONSISTENT]:
        out.append(" a figure is only called inconsistent if no rounding explains it")
    return out


def _follows(finding: ClaimFinding) -> str:
    """What its own times give, as far as their digits say."""
    assert finding.speedup is not None
    low, high = finding.speedup
    words = f"its times give {low:.3f} to {high:.3f} times"
    if finding.efficiency is not None:
        low, high = finding.efficiency
        words += f", an efficiency of {low:.3f} to {high:.3f}"
    if finding.between_launches is not None:
        low, high = finding.between_launches
        words += f"; by how launches differ, {low:.2f} to {high:.2f} times (95 %)"
    return words
