"""Compare the hardware and software of nodes, and find the nodes that differ from most others."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from harness.base.documents import Json, from_doc
from harness.host.admission import Finding

#: Facts that name a node. They differ even between identical nodes, so they are not compared.
OWN = frozenset({"hardware: host"})
#: Value of a fact that a node did not report.
ABSENT = "none"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The facts of one node by name, and the findings of its checks."""

    host: str
    facts: Mapping[str, str]
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, host: str, answer: Json) -> Self:
        """Return the object for an agent's answer (``doctor.examination``)."""
        findings = from_doc(tuple[Finding, ...], answer["findings"])
        return cls(host=host, facts=answer["facts"], findings=findings)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A fact in which nodes differ.

    ``usual`` is the most frequent value. ``others`` are pairs (host, value) of the nodes with a
    different value.
    """

    fact: str
    usual: str
    others: tuple[tuple[str, str], ...]


def drift(nodes: Sequence[Examined]) -> Iterator[Drift]:
    """Yield the facts in which nodes differ.

    If several values are most frequent, the first one counts as usual.
    """
    for fact in dict.fromkeys(name for node in nodes for name in node.facts):
        if fact in OWN:
            continue
        values = [(node.host, node.facts.get(fact, ABSENT)) for node in nodes]
        usual = Counter(value for _, value in values).most_common(1)[0][0]
        if others := tuple((host, value) for host, value in values if value != usual):
            yield Drift(fact=fact, usual=usual, others=others)
