"""Contracts: what a buyer asks for, as a file that both sides sign.

    [contract]   who, where, how large the system is, how long what fails may be mended
    [[clause]]   a rule, in the buyer's words: of which unit of the machine, measured how long
    [[unit]]     a part of the machine: a rack, an NVLink domain, whatever nodes belong together

A clause judges nothing by itself: its rule goes to the one judge (``clauses.py``).
"""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from harness.base.documents import to_doc
from harness.base.errors import SpecError, nearest
from harness.base.toml import (
    Key,
    Problems,
    TomlTable,
    check_table,
    keys_of,
    read,
    refuse_others,
    table_of,
    tables_of,
)
from harness.cases import BoundSource, Threshold, metrics
from harness.cases.rules import KEYS as RULE_KEYS, rule_of

#: The contracts that are shipped, by the names of their files.
SHIPPED = Path(__file__).parent / "contracts"
#: Of what a clause is judged where it names no unit, and the unit that needs no list of nodes.
SYSTEM = "system"
NODE = "node"
#: So many characters of a contract's digest in a run's nonce show that it was known before.
MARK = 12
#: What stands in a rule whose bound follows from the accepted record: any bound that can be missed.
_LATER = 0.5


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a contract beside its clauses. ``nodes`` is how many the system has (0 =
    unsaid), ``remedy_days`` how long whatever does not hold may be mended.
    """

    title: str = ""
    number: str = ""
    buyer: str = ""
    supplier: str = ""
    place: str = ""
    system: str = ""
    nodes: int = 0
    remedy_days: int = 0
    reservations: str = ""


@dataclass(frozen=True, kw_only=True)
class ClauseGroup:
    """A part of the machine: ``nodes`` are patterns on their names."""

    of: str
    name: str
    nodes: tuple[str, ...]

    def holds(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern) for pattern in self.nodes)


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One requirement in the buyer's words.

    ``says`` are these words, ``asked_by`` who uses them. ``per`` is the unit that it holds for:
    every one of them. ``of_accepted`` is the share of the accepted record's value that is to be
    reached; the bound of ``rule`` then follows from that record. ``pairs`` and ``hours`` are the
    least that has to be measured, ``every_days`` after how long it is measured again. ``by`` is the
    command that measures it, where no usual run does.
    """

    rule: Threshold
    says: str
    asked_by: str
    per: str = SYSTEM
    of_accepted: float | None = None
    pairs: int = 0
    hours: float = 0.0
    every_days: int = 0
    consequence: str = ""
    by: str = ""

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def asks(self) -> str:
        """``efficiency >=0.75``, or the share of what was accepted"""
        if self.of_accepted is None:
            return f"{self.rule.metric} {self.rule.bound}"
        more = metrics.metric(self.rule.metric).more_is_better
        if more:
            return f"{self.rule.metric} >={self.of_accepted:.0%} of the accepted"
        return f"{self.rule.metric} <={1 / self.of_accepted:.3g}x the accepted"

    @property
    def sampling(self) -> str:
        """``8 pairs at least, 24 h at least``"""
        parts = [f"{self.pairs} pairs at least"] if self.pairs else []
        parts += [f"{self.hours:g} h at least"] if self.hours else []
        parts += [f"again every {self.every_days} days"] if self.every_days else []
        return ", ".join(parts) or "as the judge asks"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """An agreed contract. ``sha256`` is of the file, by which the contract is known."""

    name: str
    terms: Terms
    clauses: tuple[Clause, ...]
    groups: tuple[ClauseGroup, ...]
    sha256: str

    @property
    def mark(self) -> str:
        """Text that a nonce holds, so that a run shows that it was made after this was written."""
        return self.sha256[:MARK]

    def known_to(self, nonce: str) -> bool:
        """Whether a run with this nonce was begun when the contract was there."""
        return self.mark in nonce


_TERMS = keys_of(Terms)
_GROUP = keys_of(ClauseGroup)
_CLAUSE = {
    **keys_of(Clause, rule=None),
    **RULE_KEYS,
    "source": Key(kind=str, choices=tuple(map(str, BoundSource))),
}
_OF_CLAUSE = frozenset(keys_of(Clause, rule=None))


def shipped() -> Mapping[str, Path]:
    """The contracts of the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def find(word: str) -> Path:
    """The file of a contract: a path, or the name of one that is shipped."""
    if Path(word).is_file():
        return Path(word)
    known = shipped()
    if word in known:
        return known[word]
    raise SpecError(
        f"no contract {word!r}{nearest(word, known)}",
        expected=f"a file of clauses, or one of {', '.join(known)}",
        fix="scaleproof accept contract list",
    )


def load_contract(path: Path) -> Contract:
    """Read a contract; ConfigError lists every mistake with its line and what would be right.

    A file of plain rules, as thresholds.toml, is one as well: each rule is a clause of the system.
    """
    doc, problems = read(path, "--contract", f"scaleproof accept contract show {path}")
    refuse_others(doc, ["contract", "clause", "unit", "rule"], problems)
    terms = _terms(table_of(doc, "contract", problems), problems)
    groups = [g for t in tables_of(doc, "unit", problems) if (g := _group(t, problems)) is not None]
    tables = tables_of(doc, "clause", problems)
    clauses = [_clause(table, groups, problems) for table in tables]
    rules = tables_of(doc, "rule", problems)
    clauses += [_clause_of_rule(table, problems) for table in rules]
    _refuse_twins([*tables, *rules], problems)
    problems.raise_any()
    if not clauses:
        raise SpecError(
            "a contract without a clause requires nothing",
            where=str(path),
            expected="one [[clause]] at least",
            fix="scaleproof accept contract show gate --toml",
        )
    return Contract(
        name=path.stem,
        terms=terms,
        clauses=tuple(clause for clause in clauses if clause is not None),
        groups=tuple(groups),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _terms(table: TomlTable, problems: Problems) -> Terms:
    if not check_table(table, _TERMS, problems, "contract"):
        return Terms()
    for key in ("nodes", "remedy_days"):
        if table.values.get(key, 0) < 0:
            problems.add(table.lines.get(key, table.line), f"{key} is below zero")
    return Terms(**table.values)


def _group(table: TomlTable, problems: Problems) -> ClauseGroup | None:
    if not check_table(table, _GROUP, problems, "unit"):
        return None
    nodes = table.values["nodes"]
    listed = (nodes,) if isinstance(nodes, str) else tuple(nodes)
    if not listed:
        problems.add(table.line, "a unit without nodes is never measured", 'nodes = ["n-1*"]')
    if table.values["of"] in (SYSTEM, NODE):
        what = f"{table.values['of']} needs no list"
        problems.add(table.lines.get("of", table.line), what, 'of = "rack"')
    return ClauseGroup(of=table.values["of"], name=table.values["name"], nodes=listed)


def _clause(table: TomlTable, groups: Sequence[ClauseGroup], problems: Problems) -> Clause | None:
    """A table as a clause: what is not about the clause is its rule."""
    if not check_table(table, _CLAUSE, problems, "clause"):
        return None
    before = len(problems.found)
    _check_clause(table, groups, problems)
    values: dict[str, Any] = {"source": str(BoundSource.REQUIREMENT)}
    values |= {key: value for key, value in table.values.items() if key not in _OF_CLAUSE}
    share = table.values.get("of_accepted")
    if share is not None and not {"at_least", "at_most"} & values.keys():
        values["at_least"] = _LATER
    rule = rule_of(replace(table, values=values), problems)
    if rule is None or len(problems.found) > before:
        return None
    stated = {key: value for key, value in table.values.items() if key in _OF_CLAUSE}
    return Clause(rule=rule, **stated)


def _check_clause(table: TomlTable, groups: Sequence[ClauseGroup], problems: Problems) -> None:
    """It can be judged: its units are listed, its sampling is a number, its bound is one."""

    def add(key: str, what: str, hint: str = "") -> None:
        problems.add(table.lines.get(key, table.line), what, hint)

    values = table.values
    kinds = {SYSTEM, NODE, *(group.of for group in groups)}
    if (per := values.get("per", SYSTEM)) not in kinds:
        add("per", f"no [[unit]] is of a {per!r}", f'of = "{per}" in a [[unit]], with its nodes')
    for key in ("pairs", "hours", "every_days"):
        if values.get(key, 0) < 0:
            add(key, f"{key} is below zero", f"{key} = 1")
    share = values.get("of_accepted")
    if share is not None and not 0 < share <= 1:
        add("of_accepted", f"of_accepted = {share} is no share", "of_accepted = 0.9")
    if share is not None and {"at_least", "at_most"} & values.keys():
        add("of_accepted", "the accepted record gives the bound", "remove at_least and at_most")


def _clause_of_rule(table: TomlTable, problems: Problems) -> Clause | None:
    """A plain rule as a clause: what it says is what it bounds."""
    if not check_table(table, RULE_KEYS, problems, "rule"):
        return None
    rule = rule_of(table, problems)
    return None if rule is None else Clause(rule=rule, says=rule.note, asked_by="")


def _refuse_twins(tables: Sequence[TomlTable], problems: Problems) -> None:
    """Two clauses of one name could not be told apart in a document that is signed."""
    lines: dict[Any, int] = {}
    for table in tables:
        name = table.values.get("name")
        line = table.lines.get("name", table.line)
        if name in lines:
            problems.add(line, f"the clause at line {lines[name]} has the name {name!r}, too")
        lines.setdefault(name, line)


def due(clause: Clause, accepted_on: datetime.date) -> datetime.date | None:
    """When a clause is to be measured again; None of one that is measured once."""
    if not clause.every_days:
        return None
    return accepted_on + datetime.timedelta(days=clause.every_days)


def as_rules(rules: Sequence[Threshold]) -> list[str]:
    """Rules as a file that ``--thresholds`` reads: then a run measures until they are decided, and
    a fresh set before a FAIL.
    """
    lines = []
    for rule in rules:
        lines += ["", "[[rule]]"]
        usual = {field.name: field.default for field in fields(Threshold)}
        for name, value in to_doc(rule).items():
            if name == "waiver" and value is not None:
                lines.append(f"waiver = {json.dumps(value['reason'])}")
                lines.append(f"waiver_expires = {value['expires']}")
            elif name != "fingerprint" and value not in (None, [], usual[name]):
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return lines[1:]
