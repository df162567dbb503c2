"""Recovery: a rank dies, and training goes on. What that took, and whether nothing was lost."""

from dataclasses import dataclass
from enum import StrEnum

from harness.cases.case import CaseSpec


class Fault(StrEnum):
    """How a rank is broken on purpose; its agent; or its whole node, which falls silent at once."""

    NONE = "none"
    KILL = "kill"
    HANG = "hang"
    AGENT = "agent"
    NODE = "node"


def title(case: str, fault: str, later: bool, before: int, into: int) -> str:
    """``ddp/decoder-nano/weak@2cpu kill``, and how it was saved and gone on with."""
    return f"{case} {fault}{' async' if later else ''}{'' if into == before else f' into {into}'}"


@dataclass(frozen=True, kw_only=True)
class FaultScenario:
    """One course of a recovery: a fault on ranks in turn, a kind of saving, a world to go on in."""

    case: CaseSpec
    fault: Fault
    asynchronous: bool = False
    into: CaseSpec | None = None  # another world size

    @property
    def name(self) -> str:
        size = self.case.world_size
        into = self.into or self.case
        return title(self.case.id, self.fault, self.asynchronous, size, into.world_size)

    def victim(self, i: int) -> int:
        """The rank to break in trial i; of what takes a node along, the first rank on it."""
        nodes = self.case.nodes if self.fault in (Fault.AGENT, Fault.NODE) else ()
        firsts = [sum(nodes[:n]) for n in range(len(nodes))] or range(self.case.world_size)
        return firsts[i % len(firsts)]


def resharded(case: CaseSpec) -> tuple[FaultScenario, FaultScenario]:
    """A rank less after the crash than before, and one more: no more devices than the case has."""
    smaller = case.at(case.world_size - 1)
    return (
        FaultScenario(case=case, fault=Fault.KILL, into=smaller),
        FaultScenario(case=smaller, fault=Fault.KILL, into=case),
    )
