"""Nodes side by side: in which facts some differ from what most of them have."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from harness.base.documents import Json, from_doc
from harness.host.admission import Finding

#: Facts that equal nodes need not share: what a node is called.
OWN = frozenset({"hardware: host"})
ABSENT = "none"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """One node's facts and findings."""

    host: str
    facts: Mapping[str, str]
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, host: str, answer: Json) -> Self:
        """An agent's answer (``doctor.examination``)."""
        findings = from_doc(tuple[Finding, ...], answer["findings"])
        return cls(host=host, facts=answer["facts"], findings=findings)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A fact in which nodes differ: what most of them have, and (host, value) of the others."""

    fact: str
    usual: str
    others: tuple[tuple[str, str], ...]


def drift(nodes: Sequence[Examined]) -> Iterator[Drift]:
    """The most frequent value of a fact is taken for the usual one; of equals the first."""
    for fact in dict.fromkeys(name for node in nodes for name in node.facts):
        if fact in OWN:
            continue
        values = [(node.host, node.facts.get(fact, ABSENT)) for node in nodes]
        usual = Counter(value for _, value in values).most_common(1)[0][0]
        if others := tuple((host, value) for host, value in values if value != usual):
            yield Drift(fact=fact, usual=usual, others=others)
