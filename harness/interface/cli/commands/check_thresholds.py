"""The command ``check thresholds``: show what each threshold of a file applies to."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.analysis.verify import rejudge
from harness.base.documents import to_doc
from harness.cases import Catalogue, Threshold, metrics, rules as vacuous
from harness.cases.rules import load_thresholds
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked, vouched
from harness.interface.report.text import Column, columns, table, wrap
from harness.record import RunRecord, Status
from harness.record.outcome import exit_status

HELP = {
    "check thresholds": "check a thresholds file, and list what each threshold applies to",
}
EXAMPLES = {
    "check thresholds": (
        "check thresholds suites/thresholds.toml",
        "check thresholds suites/thresholds.toml RUN",
    ),
}


class Judges(TypedDict):
    rule: Threshold
    judges: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "check thresholds": (Sequence[Judges],),
}


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    """A threshold and what it judges."""

    rule: Threshold
    judges: str


_COLUMNS = (
    Column[RuleLine]("rule", 100, lambda line: line.rule.name, left=True),
    Column[RuleLine](
        "requires", 95, lambda line: f"{line.rule.metric} {line.rule.bound}", left=True
    ),
    Column[RuleLine]("source", 10, lambda line: str(line.rule.source), left=True),
    Column[RuleLine]("judges", 99, lambda line: line.judges, left=True, prose=True),
)


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("file", type=Path, metavar="FILE", help="a thresholds.toml")
    sub.add_argument(
        "run", type=Path, nargs="?", metavar="RUN", help="judge this run by the thresholds"
    )
    options.add_path(sub)


def act(asked: Asked) -> Answer:
    """Return a line for each threshold; a mistake in the file raises an error."""
    catalogue = options.catalogue(asked.options.path)
    rules = load_thresholds(asked.options.file, catalogue)
    counted = list[Status]()
    measured = None if asked.options.run is None else load(asked.options.run)
    if measured is None:
        lines = [
            RuleLine(rule=threshold, judges=_cases(threshold, catalogue)) for threshold in rules
        ]
    else:
        run = rejudge(measured, rules)
        lines = [RuleLine(rule=threshold, judges=_verdicts(threshold, run)) for threshold in rules]
        names = {rule.name for rule in rules}
        counted = [verdict.counts for verdict in run.verdicts if verdict.rule in names]
    width = columns()
    shown = table(_COLUMNS, lines, width)
    if measured is not None:
        idle = sum(line.judges == "nothing" for line in lines)
        shown += [f" {idle} of {len(lines)} thresholds judge nothing in this run"] if idle else []
    for rule, other in vacuous.implied(rules):
        reason = f" {rule.name} cannot fail if {other.name} is met ({other.metric} {other.bound})"
        shown += wrap(reason, width, 1)
    document = [{"rule": to_doc(line.rule), "judges": line.judges} for line in lines]
    if measured is None:
        return Answer(document=document, lines=shown)
    answer = Answer(document=document, lines=shown, exit=exit_status(counted))
    return vouched(answer, [(measured, asked.options.run)])


def _cases(rule: Threshold, catalogue: Catalogue) -> str:
    """Return the family of cases that a threshold applies to, or the number of families."""
    if command := metrics.metric(rule.metric).measured_by:
        return f"results of {command}"
    families = vacuous.matching(rule.case, vacuous.families(catalogue))
    return families[0] if len(families) == 1 else f"{len(families)} families of cases"


def _verdicts(rule: Threshold, run: RunRecord) -> str:
    """Return how many verdicts of each status a threshold gives."""
    count = Counter(verdict.status for verdict in run.verdicts if verdict.rule == rule.name)
    return ", ".join(f"{count[status]} {status}" for status in Status if count[status]) or "nothing"
