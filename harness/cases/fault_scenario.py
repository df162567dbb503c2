"""Fault scenarios: a rank is stopped, and training resumes.

They measure the time until training has resumed, and the work that is lost.
"""

from dataclasses import dataclass
from enum import StrEnum

from harness.cases.case import CaseSpec


class Fault(StrEnum):
    """The fault that is injected.

    ``kill`` and ``hang`` affect one rank, and ``agent`` affects the agent of its node. ``node``
    affects the whole node, which then stops answering.
    """

    NONE = "none"
    KILL = "kill"
    HANG = "hang"
    AGENT = "agent"
    NODE = "node"


def title(case: str, fault: str, later: bool, before: int, into: int) -> str:
    """Return the name of a scenario, for example ``ddp/decoder-nano/weak@2cpu kill``.

    ``async`` is added if checkpoints are asynchronous (``later``), and the world size after the
    fault (``into``) is added if it differs from the size before.
    """
    return f"{case} {fault}{' async' if later else ''}{'' if into == before else f' into {into}'}"


@dataclass(frozen=True, kw_only=True)
class FaultScenario:
    """A fault that is injected into a different rank in each trial.

    ``case`` is the case before the fault. ``asynchronous`` states that checkpoints are written in
    the background. ``into`` is the case that resumes after the fault, if its world size differs.
    """

    case: CaseSpec
    fault: Fault
    asynchronous: bool = False
    into: CaseSpec | None = None  # the case with another world size, if it changes

    @property
    def name(self) -> str:
        """The name of the scenario."""
        size = self.case.world_size
        into = self.into or self.case
        return title(self.case.id, self.fault, self.asynchronous, size, into.world_size)

    def victim(self, i: int) -> int:
        """Return the rank that trial i stops.

        If the fault affects a whole node, this is the first rank of the node.
        """
        nodes = self.case.nodes if self.fault in (Fault.AGENT, Fault.NODE) else ()
        firsts = [sum(nodes[:n]) for n in range(len(nodes))] or range(self.case.world_size)
        return firsts[i % len(firsts)]


def resharded(case: CaseSpec) -> tuple[FaultScenario, FaultScenario]:
    """Return two scenarios: one resumes on one rank fewer, the other on one rank more.

    Neither needs more devices than the case has.
    """
    smaller = case.at(case.world_size - 1)
    return (
        FaultScenario(case=case, fault=Fault.KILL, into=smaller),
        FaultScenario(case=smaller, fault=Fault.KILL, into=case),
    )
