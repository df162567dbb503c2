"""The command ``accept contract list | show | check``: contracts, and whether runs meet them.

A contract is a file with clauses. Each clause states a threshold that a buyer requires.
"""

import argparse
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.base.documents import to_doc
from harness.base.errors import SpecError
from harness.cases import metrics
from harness.features.acceptance.clauses import Requirement, rules_of
from harness.features.acceptance.contract import (
    Clause,
    Contract,
    as_rules,
    find,
    load_contract,
    shipped,
)
from harness.features.acceptance.handover import Handover, handover
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.interface.report.text import Column, table
from harness.record import RunRecord, Status
from harness.record.outcome import exit_status

HELP = {
    "accept contract": "list, show and check acceptance contracts",
}
EXAMPLES = {
    "accept contract": (
        "accept contract show retained --toml",
        "accept contract check retained RUN --accepted EARLIER_RUN",
    ),
}


class Listed(TypedDict):
    contracts: Sequence[Contract]


class Stated(TypedDict):
    contract: Contract
    nonce: str


class Checked(TypedDict):
    contract: str
    status: str
    requirements: Sequence[Requirement]
    stand_ins: Sequence[Requirement]


class AllChecked(TypedDict):
    status: str
    contracts: Sequence[Checked]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "accept contract": (Listed, Stated, AllChecked),
}


@dataclass(frozen=True, kw_only=True)
class Named:
    """A contract that the package contains, with its name."""

    name: str
    contract: Contract


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments for the action, the contracts and the runs."""
    sub.add_argument("action", choices=("list", "show", "check"))
    sub.add_argument(
        "words",
        nargs="*",
        metavar="CONTRACT|RUN",
        help="contracts (files or listed names); for check followed by the runs",
    )
    sub.add_argument(
        "--accepted",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="a run that was accepted before",
    )
    form = sub.add_mutually_exclusive_group()
    form.add_argument(
        "--toml", action="store_true", help="for show: print the file, as a template for a contract"
    )
    form.add_argument(
        "--rules", action="store_true", help="for show: print a file for --thresholds of a run"
    )


def act(asked: Asked) -> Answer:
    """List, show or check contracts."""
    given = asked.options
    if given.action == "list":
        return _list()
    if given.action == "show":
        return _show(given)
    return _check(given.words, given.accepted)


def _list() -> Answer:
    known = [Named(name=name, contract=load_contract(path)) for name, path in shipped().items()]
    rows = [
        Column[Named]("contract", 100, lambda n: n.name, left=True),
        Column("clauses", 50, lambda n: str(len(n.contract.clauses))),
        Column("asks for", 90, lambda n: n.contract.terms.title, left=True),
    ]
    then = [
        "",
        " one in full    scaleproof accept contract show NAME",
        " one of yours   scaleproof accept contract show NAME --toml > mine.toml",
        " on a run       scaleproof accept contract check mine.toml RUN",
    ]
    lines = [*table(rows, known, text.columns()), *then]
    return Answer(document={"contracts": to_doc([named.contract for named in known])}, lines=lines)


def _show(given: argparse.Namespace) -> Answer:
    if len(given.words) != 1:
        raise SpecError(
            f"contract show takes one contract, but {len(given.words)} were given",
            expected=f"the path of a contract, or one of {', '.join(shipped())}",
            fix="scaleproof accept contract show gate",
        )
    path = find(given.words[0])
    contract = load_contract(path)
    document = {"contract": to_doc(contract), "nonce": contract.mark}
    if given.toml:
        return Answer(document=document, lines=path.read_text(encoding="utf-8").splitlines())
    if given.rules:
        rules = rules_of(contract, [run for run, _ in map(_loaded, given.accepted)])
        if not rules:
            raise SpecError(
                "every clause refers to an accepted run, but no value of an accepted run was given",
                where=str(path),
                expected="--accepted with the run that was accepted",
                fix=f"scaleproof accept contract show {given.words[0]} --rules --accepted RUN",
            )
        return Answer(document=document, lines=as_rules(rules))
    width = text.columns()
    lines = text.wrap(f" {contract.terms.title or contract.name}", width, 1)
    for clause in contract.clauses:
        lines += ["", *_stated(clause, width)]
    for group in contract.groups:
        lines += text.wrap(f" {group.of} {group.name}: {', '.join(group.nodes)}", width, 3)
    lines += [
        "",
        f" sha256  {contract.sha256}",
        *text.wrap(
            f" nonce   put {contract.mark} into the --nonce of a run, which then proves that the"
            " contract existed before the run",
            width,
            9,
        ),
    ]
    return Answer(document=document, lines=lines)


def _stated(clause: Clause, width: int) -> list[str]:
    """Return a clause as a paragraph: its threshold, scope, measurement and consequence."""
    rule = clause.rule
    against = f" v {rule.baseline}" if rule.baseline else ""
    usual = metrics.metric(rule.metric).measured_by or "scaleproof run, pytest suites/"
    measured = clause.by or usual
    rows = (
        ("says", clause.says),
        (
            "asks",
            f"{clause.asks} of {rule.case}{against}",
        ),
        ("of each", clause.per),
        ("measure", f"{clause.sampling}; {measured}"),
        ("asked by", clause.asked_by),
        ("else", clause.consequence),
    )
    lines = [f" {clause.name}"]
    for word, value in rows:
        lines += text.wrap(f"   {word:<9} {value}", width, 13) if value else []
    return lines


def _check(words: Sequence[str], accepted: Sequence[Path]) -> Answer:
    """Check every contract against all of the runs."""
    files = [w for w in words if w.endswith(".toml") or (w in shipped() and not Path(w).is_dir())]
    folders = [w for w in words if w not in files]
    if not files or not folders:
        raise SpecError(
            f"contract check was given {len(files)} contracts and {len(folders)} runs",
            expected="at least one contract and at least one run",
            fix="scaleproof accept contract check gate results/runs/MACHINE/RUN",
        )
    runs = list(map(_loaded, map(Path, folders)))
    before = list(map(_loaded, accepted))
    today = datetime.datetime.now(datetime.UTC).date()
    contracts = [load_contract(find(word)) for word in files]
    answers = [(contract, handover(runs, today, contract, before)) for contract in contracts]
    width = text.columns()
    lines = [line for contract, judged in answers for line in _lines(contract, judged, width)]
    for seal in (*answers[0][1].seals, *answers[0][1].accepted):
        for difference in seal.differences:
            lines += text.wrap(f" DOES NOT VERIFY  {seal.run}: {difference}", width, 18)
    status = [judged.status for _, judged in answers]
    document = {
        "status": str(min(status, key=_ORDER.index)),
        "contracts": [
            {
                "contract": contract.name,
                "status": str(judged.status),
                "requirements": to_doc(judged.requirements),
                "stand_ins": to_doc(judged.stand_ins),
            }
            for contract, judged in answers
        ],
    }
    return Answer(document=document, lines=lines, exit=exit_status(status))


#: Statuses of contracts, the worst first.
_ORDER = (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.RECORDED, Status.PASS)


def _loaded(path: Path) -> tuple[RunRecord, Path]:
    return load(path), path if path.is_dir() else path.parent


def _lines(contract: Contract, result: Handover, width: int) -> list[str]:
    """Return the status of a contract and a paragraph for each clause."""
    from harness.features.acceptance.acceptance_page import covered, screen

    title = contract.terms.title or contract.name
    lines = ["", f" {result.status}", *text.wrap(f" {title} ({contract.name})", width, 1)]
    lines += [*text.wrap(f" on {covered(result)}", width, 4), ""]
    lines += screen(result.requirements, width)
    for requirement in result.requirements:
        if requirement.unmeasured:
            units = ", ".join(requirement.unmeasured)
            lines += text.wrap(f" not measured for {requirement.rule.name}: {units}", width, 3)
    if result.stand_ins:
        names = ", ".join(stand_in.rule.name for stand_in in result.stand_ins)
        lines += text.wrap(f" not counted (simulated or controls): {names}", width, 3)
    if any(r.late for r in result.requirements):
        why = (
            f"no run's nonce contains {contract.mark}, so nothing proves that the contract was"
            " agreed before the runs"
        )
        lines += text.wrap(f" {why}", width, 1)
    return lines
