"""Write the effect of a change for code hosts: a comment, line annotations, a quality report.

GitHub: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
GitLab: https://docs.gitlab.com/ci/testing/code_quality/ ("Code Quality report format")
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from harness.base.documents import Json
from harness.base.formatting import si
from harness.features.sharing.change import CaseChange, worst
from harness.features.sharing.checkouts import Version
from harness.interface.report.tabled import Table, harmless
from harness.interface.report.text import Column
from harness.record import Status

#: The mark by which a bot finds its comment on the previous push and replaces it.
MARK = "<!-- scaleproof compare pr -->"
#: The level of the annotation for each status. A PASS has no annotation.
_LEVELS = {Status.FAIL: "error", Status.ERROR: "error", Status.INCONCLUSIVE: "warning"}
_SEVERITY = {Status.FAIL: "critical", Status.ERROR: "blocker", Status.INCONCLUSIVE: "minor"}


def sentence(changes: Sequence[CaseChange]) -> str:
    """Return a sentence about the worst case, such as this one:

    ``FAIL: ddp/decoder-tiny/weak@2cpu has 0.910 [0.902, 0.918] of base throughput, threshold 0.95``
    """
    change = worst(changes)
    asked = f"threshold {1 - change.allowed:g}"
    if change.ratio is None or change.status is Status.ERROR:
        return f"{change.status}: {change.case}: {change.why}"
    others = f" (the worst of {len(changes)} cases)" if len(changes) > 1 else ""
    figure = f"{change.case} has {_span(change.ratio, change.low, change.high)} of base throughput"
    why = f": {change.why}" if change.why else ""
    return f"{change.status}: {figure}{others}, {asked}{why}"


def table(changes: Sequence[CaseChange]) -> Table[CaseChange]:
    """Return a table with a row for each case.

    It also shows the comparison of the base version with itself.
    """
    return Table(
        columns=[
            Column[CaseChange]("result", 100, lambda c: str(c.status), left=True),
            Column("case", 99, lambda c: c.case, left=True),
            Column("base", 40, lambda c: si(c.base_step_s, "s") if c.base_step_s else ""),
            Column("head", 41, lambda c: si(c.head_step_s, "s") if c.head_step_s else ""),
            Column("head/base [95%]", 98, lambda c: _span(c.ratio, c.low, c.high), left=True),
            Column("base/base [95%]", 90, _again, left=True),
            Column("needs", 70, lambda c: f">={1 - c.allowed:g}"),
            Column("pairs", 30, lambda c: str(c.num_pairs)),
        ],
        rows=changes,
    )


def _again(change: CaseChange) -> str:
    return _span(change.again_ratio, change.again_low, change.again_high)


def _span(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return "n/a"
    return f"{ratio:.3f} [{'n/a' if low is None or high is None else f'{low:.3f}, {high:.3f}'}]"


def markdown(
    changes: Sequence[CaseChange], versions: tuple[Version, Version], about: Sequence[str]
) -> list[str]:
    """Return a comment in Markdown: one sentence, the table, and the method in a folded section."""
    base, head = versions
    edited = " with uncommitted changes" if head.edited else ""
    lines = [MARK, f"### {harmless(sentence(changes))}", "", *table(changes).markdown(), ""]
    lines += [f"- {harmless(f'{change.case}: {change.why}')}" for change in changes if change.why]
    return [
        *lines,
        "<details><summary>How this was measured</summary>",
        "",
        f"- base is `{base.short}`, the last commit in common with {harmless(base.asked)};"
        f" head is `{head.short}`{edited}.",
        "- head/base is the throughput ratio of launches that alternate in the same blocks, so"
        " drift affects both equally. The interval is valid even if it is inspected after every"
        " block. base/base compares the base version with itself.",
        *(f"- {harmless(line)}" for line in about),
        "",
        "</details>",
    ]


def annotations(changes: Sequence[CaseChange]) -> list[str]:
    """Return workflow commands of GitHub (``::error file=...::``), which annotate files."""
    lines = []
    for change in changes:
        if change.status in _LEVELS:
            values = {"file": change.file, "title": f"scaleproof: {change.status}"}
            properties = ",".join(
                f"{key}={_property(value)}" for key, value in values.items() if value
            )
            lines.append(f"::{_LEVELS[change.status]} {properties}::{_data(sentence([change]))}")
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def quality(changes: Sequence[CaseChange]) -> str:
    """Return the list of degradations that GitLab shows in a merge request."""
    issues: list[Mapping[str, Json]] = [
        {
            "description": sentence([change]),
            "check_name": "scaleproof",
            "fingerprint": hashlib.sha256(change.case.encode()).hexdigest()[:32],
            "severity": _SEVERITY[change.status],
            "location": {"path": change.file or ".", "lines": {"begin": 1}},
        }
        for change in changes
        if change.status in _SEVERITY
    ]
    return json.dumps(issues, indent=1) + "\n"
