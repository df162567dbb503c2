"""The command ``history baseline show | set | accept``: expected values of a hardware class."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.audit import twice
from harness.analysis.compare import DRIFT
from harness.analysis.judging import expected
from harness.analysis.judging.expected import ExpectedValue
from harness.analysis.reading import load
from harness.analysis.verify import refuse_unsealed
from harness.base.documents import to_doc
from harness.base.errors import SpecError
from harness.cases import metrics
from harness.host.machine import detect
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import RunRecord

HELP = {
    "history baseline": "show, set or accept the expected values of a hardware class",
}
EXAMPLES = {
    "history baseline": (
        "history baseline set RUN",
        'history baseline accept RUN --again RUN_OF_ANOTHER_DAY --reason "new switch firmware"',
    ),
}
DEFAULT = Path("results/baselines")


class References(TypedDict):
    references: Sequence[ExpectedValue]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "history baseline": (References,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the action, the run and the references file."""
    sub.add_argument("action", choices=("show", "set", "accept"))
    sub.add_argument(
        "run", nargs="?", type=Path, help="for set and accept: the run with the values"
    )
    sub.add_argument(
        "--references",
        type=Path,
        default=DEFAULT,
        metavar="PATH",
        help="a file, or a folder with a file for each hardware class (default: results/baselines)",
    )
    sub.add_argument(
        "--tolerance",
        type=float,
        default=0.1,
        help="relative deviation allowed on each side (default: 0.1)",
    )
    sub.add_argument("--case", default="*", help="only cases whose id matches this pattern")
    sub.add_argument("--reason", default="", help="for accept: why the new value is correct")
    sub.add_argument(
        "--again",
        type=Path,
        metavar="RUN",
        help="for accept: a run from another day or on other nodes that confirms a better value",
    )


def act(asked: Asked) -> Answer:
    """Show the references of this hardware, or store values of a run as references."""
    parsed = asked.options
    if parsed.action == "show":
        return _show(parsed.references)
    _refuse(parsed)
    run = load(parsed.run)
    if not run.complete:
        raise SpecError(
            "the run was interrupted, so its values are incomplete",
            where=str(parsed.run),
            fix=f"scaleproof run --resume {parsed.run}",
        )
    refuse_unsealed(run, parsed.run if parsed.run.is_dir() else parsed.run.parent)
    path = expected.path_for(parsed.references, run.machine.hardware_class)
    known = {r.key: r for r in expected.load(path)} if path.is_file() else {}
    again = {} if parsed.again is None else _elsewhere(parsed.again, run)
    new, lines = _values(run, parsed)
    changed = []
    waiting = []
    for reference in new:
        old = known.get(reference.key)
        if old is not None and parsed.action == "set":
            lines.append(f" kept     {_name(reference)}: {old.value:.4g} ({old.status} {old.date})")
            continue
        was = "" if old is None else f"{old.value:.4g} -> "
        taken = _taken(reference, old, again.get(reference.key))
        if taken is None:
            lines.append(f" waits    {_name(reference)}: {was}{reference.value:.4g}")
            waiting.append(reference)
            continue
        if parsed.action == "accept":
            taken = replace(taken, source=f"{taken.source}: {parsed.reason}")
        word = "new" if old is None else "changed"
        lines.append(f" {word:<8} {_name(taken)}: {was}{taken.value:.4g}")
        known[taken.key] = taken
        changed.append(taken)
    if waiting and not changed:
        raise SpecError(
            f"{_name(waiting[0])} is better than the reference in one run only",
            where=str(path),
            expected="a second run, from another day or on other nodes, that confirms it",
            fix=f'scaleproof history baseline accept {parsed.run} --again RUN --reason "..."',
        )
    expected.write(path, list(known.values()))
    if waiting:
        lines.append(" values that wait need a second run that confirms them: --again RUN")
    lines.append(f" {path}: {len(known)} references, {len(changed)} written")
    if parsed.action == "set" and len(changed) < len(new):
        lines.append(
            ' to replace a known value: scaleproof history baseline accept RUN --reason "..."'
        )
    return Answer(document={"references": to_doc(tuple(changed))}, lines=lines)


def _refuse(parsed: argparse.Namespace) -> None:
    """Raise SpecError for a missing run, an invalid tolerance or a missing reason."""
    if parsed.run is None:
        raise SpecError(
            f"baseline {parsed.action} needs a run",
            expected="a run's folder",
            fix=f"scaleproof history baseline {parsed.action} results/runs/MACHINE/RUN",
        )
    if not 0 < parsed.tolerance < 1:
        raise SpecError(
            f"--tolerance {parsed.tolerance}",
            expected="a share between 0 and 1 (0.1 is 10 %)",
            fix="0.1",
        )
    if parsed.action == "accept" and not parsed.reason:
        raise SpecError(
            "accepting a changed value needs a reason",
            expected='--reason "new switch firmware"',
            fix=f'scaleproof history baseline accept {parsed.run} --reason "..."',
        )


def _values(run: RunRecord, parsed: argparse.Namespace) -> tuple[list[ExpectedValue], list[str]]:
    """Return the usable values of a run, and a line for each value that is in doubt.

    Raise SpecError if no value is usable.
    """
    values, in_doubt = expected.measured(run, parsed.tolerance)
    doubted = [f"{case} {why}" for case, why in in_doubt if fnmatchcase(case, parsed.case)]
    new = [r for r in values if fnmatchcase(r.case, parsed.case)]
    if not new and doubted:
        raise SpecError(
            f"no value of this run can be a reference: {doubted[0]}",
            where=str(parsed.run),
            expected="values that a verdict can rest on",
            fix=f"scaleproof report {parsed.run}   # shows what would decide it",
        )
    if not new:
        raise SpecError(
            "this run has no value that can be a reference",
            where=str(parsed.run),
            expected="measured cases on real devices (simulated ones say nothing about hardware)",
            fix=f"scaleproof report {parsed.run}",
        )
    return new, [f" in doubt {what}" for what in doubted]


def _taken(
    new: ExpectedValue, old: ExpectedValue | None, held: ExpectedValue | None
) -> ExpectedValue | None:
    """Return the value to store, or None if a better value is not confirmed by a second run.

    If two runs show a better value, the weaker one of their values is stored.
    """
    if old is None or not _better(new, old):
        return new
    if held is None or not _better(held, old):
        return None
    return new if _better(held, new, 0.0) else held


def _better(new: ExpectedValue, old: ExpectedValue, by: float = DRIFT) -> bool:
    """Return whether a value is better than another one by more than a share ``by``.

    A better reference is a stricter threshold, so one fast run alone must not set it.
    """
    ratio = new.value / old.value if old.value else 1.0
    return ratio > 1 + by if metrics.metric(new.metric).more_is_better else ratio < 1 - by


def _elsewhere(path: Path, run: RunRecord) -> dict[tuple[str, str, str | None], ExpectedValue]:
    """Return the values of a second run by key.

    Raise SpecError unless it is a complete run on the same hardware class, from another day or on
    other nodes than the first.
    """
    second = load(path)
    refuse_unsealed(second, path if path.is_dir() else path.parent)
    nodes = [{machine.host for machine in r.nodes or (r.machine,)} for r in (run, second)]
    same_day = run.started_at[:10] == second.started_at[:10]
    if second.run == run.run or (same_day and nodes[0] & nodes[1]):
        raise SpecError(
            f"--again {path} is from the same day and used the same nodes",
            where=str(path),
            expected="a run from another day or on other nodes, whose conditions are independent",
            fix='scaleproof history baseline accept RUN --again OTHER --reason "..."',
        )
    if shared := twice(second, run):
        raise SpecError(
            f"--again {path} is a copy of the run: {shared}",
            where=str(path),
            expected="a run that was measured again",
            fix='scaleproof history baseline accept RUN --again OTHER --reason "..."',
        )
    if not second.complete or second.machine.hardware_class != run.machine.hardware_class:
        raise SpecError(
            f"--again {path} was interrupted, or ran on other hardware",
            where=str(path),
            expected=f"a complete run on {run.machine.hardware_class}",
            fix=f"scaleproof report {path}",
        )
    return {r.key: r for r in expected.measured(second, 0.1)[0]}


def _name(r: ExpectedValue) -> str:
    return f"{r.case} {r.metric}" + (f" v {r.baseline}" if r.baseline else "")


def _range(r: ExpectedValue) -> str:
    """Return the allowed deviations, for example ``-10% +10%``; a side without limit is omitted."""
    return " ".join(f"{side:+.0%}" for side in (r.lower, r.upper) if side is not None)


def _show(place: Path) -> Answer:
    path = expected.path_for(place, detect().hardware_class)
    if not path.is_file():
        raise SpecError(
            "no references for this hardware",
            where=str(path),
            fix=f"scaleproof history baseline set RUN --references {place}",
        )
    references = expected.load(path)
    column = text.Column[ExpectedValue]
    columns = [
        column("case", 9, lambda r: r.case, left=True),
        column("metric", 8, lambda r: _name(r).removeprefix(f"{r.case} "), left=True),
        column("value", 7, lambda r: f"{r.value:.4g}"),
        column("accepts", 6, _range, left=True),
        column("status", 5, lambda r: r.status, left=True),
        column("n", 2, lambda r: str(r.n or "")),
        column("date", 3, lambda r: r.date),
        column("source", 1, lambda r: r.source, left=True),
    ]
    return Answer(
        document={"references": to_doc(references)},
        lines=[*text.table(columns, references, text.columns()), "", f" {path}"],
    )
