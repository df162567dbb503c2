"""Read contracts: files in which a buyer states requirements and which both parties sign.

    [contract]   the parties, the place, the size of the system, the remedy period
    [[clause]]   a threshold in the buyer's words, the unit it applies to, how long to measure
    [[unit]]     a part of the machine, such as a rack or an NVLink domain, with its nodes

The threshold of a clause is judged by the same code as the thresholds of runs (``clauses.py``).
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

#: The folder of the contracts that the package ships. Each contract has the name of its file.
SHIPPED = Path(__file__).parent / "contracts"
#: The default unit of a clause, and the unit of single nodes. Neither needs a list of nodes.
SYSTEM = "system"
NODE = "node"
#: Number of characters of a contract's digest that a run's nonce must contain. They prove that the
#: contract existed before the run.
MARK = 12
#: Placeholder for the bound of a threshold whose real bound follows from the accepted record.
_LATER = 0.5


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a contract, apart from its clauses.

    ``nodes`` is the number of nodes of the system (0 = not stated). ``remedy_days`` is the period
    in which failed requirements may be repaired.
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
    """A unit of the machine: ``nodes`` are patterns that match the names of its nodes."""

    of: str
    name: str
    nodes: tuple[str, ...]

    def holds(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern) for pattern in self.nodes)


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One requirement in the buyer's words.

    ``rule`` is the threshold. ``says`` holds the buyer's words and ``asked_by`` their source.
    ``per`` is the kind of unit to which the clause applies, and every unit of this kind must meet
    it. If ``of_accepted`` is set, the bound is this share of the value in an accepted record.
    ``pairs`` and ``hours`` are the smallest amounts to measure. ``every_days`` is the number of
    days after which to measure again. ``by`` is the command that measures the clause if ordinary
    runs do not.
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
        """The bound as text, such as ``efficiency >=0.75``, or as a share of the accepted value."""
        if self.of_accepted is None:
            return f"{self.rule.metric} {self.rule.bound}"
        more = metrics.metric(self.rule.metric).more_is_better
        if more:
            return f"{self.rule.metric} >={self.of_accepted:.0%} of the accepted value"
        return f"{self.rule.metric} <={1 / self.of_accepted:.3g}x the accepted value"

    @property
    def sampling(self) -> str:
        """The amount to measure, such as ``8 pairs at least, 24 h at least``."""
        parts = [f"{self.pairs} pairs at least"] if self.pairs else []
        parts += [f"{self.hours:g} h at least"] if self.hours else []
        parts += [f"again every {self.every_days} days"] if self.every_days else []
        return ", ".join(parts) or "as much as the judge needs"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """An agreed contract. ``sha256`` is the digest of its file, which identifies the contract."""

    name: str
    terms: Terms
    clauses: tuple[Clause, ...]
    groups: tuple[ClauseGroup, ...]
    sha256: str

    @property
    def mark(self) -> str:
        """The start of the digest.

        A run whose nonce contains it began after the contract was written.
        """
        return self.sha256[:MARK]

    def known_to(self, nonce: str) -> bool:
        """Return whether a run with this nonce began after the contract was written."""
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
    """Return the contracts of the package by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def find(word: str) -> Path:
    """Return the file of a contract, given its path or the name of a shipped contract."""
    if Path(word).is_file():
        return Path(word)
    known = shipped()
    if word in known:
        return known[word]
    raise SpecError(
        f"there is no contract {word!r}{nearest(word, known)}",
        expected=f"a file with clauses, or one of {', '.join(known)}",
        fix="scaleproof accept contract list",
    )


def load_contract(path: Path) -> Contract:
    """Read a contract. Raise ConfigError with every mistake, its line and what is expected.

    A file of thresholds only, such as thresholds.toml, is also a contract. Each threshold is then a
    clause about the whole system.
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
            "the contract has no clause, so it requires nothing",
            where=str(path),
            expected="at least one [[clause]]",
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
        problems.add(table.line, "a unit without nodes cannot be measured", 'nodes = ["n-1*"]')
    if table.values["of"] in (SYSTEM, NODE):
        what = f"the unit {table.values['of']!r} is built in and needs no list of nodes"
        problems.add(table.lines.get("of", table.line), what, 'of = "rack"')
    return ClauseGroup(of=table.values["of"], name=table.values["name"], nodes=listed)


def _clause(table: TomlTable, groups: Sequence[ClauseGroup], problems: Problems) -> Clause | None:
    """Return a clause from a table.

    All keys that do not belong to a clause belong to its threshold.
    """
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
    """Check that a clause can be judged: its unit is listed and its numbers are in range."""

    def add(key: str, what: str, hint: str = "") -> None:
        problems.add(table.lines.get(key, table.line), what, hint)

    values = table.values
    kinds = {SYSTEM, NODE, *(group.of for group in groups)}
    if (per := values.get("per", SYSTEM)) not in kinds:
        add(
            "per",
            f"no [[unit]] is of the kind {per!r}",
            f'of = "{per}" in a [[unit]], with its nodes',
        )
    for key in ("pairs", "hours", "every_days"):
        if values.get(key, 0) < 0:
            add(key, f"{key} is below zero", f"{key} = 1")
    share = values.get("of_accepted")
    if share is not None and not 0 < share <= 1:
        add("of_accepted", f"of_accepted = {share} is not a share", "of_accepted = 0.9")
    if share is not None and {"at_least", "at_most"} & values.keys():
        add("of_accepted", "the accepted record gives the bound", "remove at_least and at_most")


def _clause_of_rule(table: TomlTable, problems: Problems) -> Clause | None:
    """Return a clause for a plain threshold. The note of the threshold is the clause's text."""
    if not check_table(table, RULE_KEYS, problems, "rule"):
        return None
    rule = rule_of(table, problems)
    return None if rule is None else Clause(rule=rule, says=rule.note, asked_by="")


def _refuse_twins(tables: Sequence[TomlTable], problems: Problems) -> None:
    """Refuse two clauses with one name, because a signed document could not distinguish them."""
    lines: dict[Any, int] = {}
    for table in tables:
        name = table.values.get("name")
        line = table.lines.get("name", table.line)
        if name in lines:
            problems.add(line, f"the clause at line {lines[name]} has the name {name!r}, too")
        lines.setdefault(name, line)


def due(clause: Clause, accepted_on: datetime.date) -> datetime.date | None:
    """Return the date by which a clause must be measured again; None if it is measured once."""
    if not clause.every_days:
        return None
    return accepted_on + datetime.timedelta(days=clause.every_days)


def as_rules(rules: Sequence[Threshold]) -> list[str]:
    """Return thresholds as the lines of a file that ``--thresholds`` reads.

    A run with that file measures until the thresholds are decided, and measures a new set of pairs
    before a FAIL.
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
