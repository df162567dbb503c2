"""The budget of a step: every nanosecond in exactly one term, for each rank and step.

    compute, exposed move, wait, bubble, exposed transfer, data, launch, host idle, other

Each term takes only what those before it left, so they add up to the step exactly. Communication
that compute hides is in no term: it costs nothing. ``analysis/timeline`` makes budgets of traces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: How a window was captured: by every operator, or from outside of them (waits, spans, ranges).
OPERATORS = "operators"
OUTLINE = "outline"


class Term(StrEnum):
    """Where a step's time goes.

    ``wait``: exposed communication before the last rank had come. ``bubble``: the same of a send
    or recv. ``exposed_comm``: undivided, where the other ranks' traces are not there to divide it.
    """

    COMPUTE = "compute"
    MOVE = "exposed_move"
    WAIT = "wait"
    BUBBLE = "bubble"
    TRANSFER = "exposed_transfer"
    UNDIVIDED = "exposed_comm"
    DATA = "data"
    LAUNCH = "launch"
    IDLE = "host_idle"
    OTHER = "other"


#: Terms that are exposed communication.
EXPOSED = (Term.WAIT, Term.BUBBLE, Term.TRANSFER, Term.UNDIVIDED)


@dataclass(frozen=True, kw_only=True)
class RankBudget:
    """One rank's steps: ns of each term in each step; every step's terms sum to ``step_ns``.

    ``comm_ns`` is all communication, hidden or not. ``wait_free_ns`` estimates ``wait`` without
    any clock: a collective's duration over the shortest among its ranks.
    """

    rank: int
    step_ns: tuple[int, ...]
    terms: Mapping[str, tuple[int, ...]]
    comm_ns: tuple[int, ...]
    wait_free_ns: tuple[int, ...] | None

    def mean_ns(self, *terms: Term) -> float:
        """Of these terms together, in a mean step."""
        return sum(sum(self.terms.get(term, ())) for term in terms) / len(self.step_ns)


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The rank that the others waited for most, and what it was at.

    Waiting is attributed within each step and then added up. ``waited_ns`` is what others waited
    for this rank per step, less what it waited itself in the same step: a rank that is late because
    it waited passes the blame on. ``share`` is its part of all that is left so. ``gross_ns`` is all
    waiting of all ranks per step, ``net_ns`` what others waited for this rank less what it waited
    itself, over all steps. ``term`` is where its step exceeds the median of the others' most, by
    ``excess_ns``. Records until schema 9 have no gross, and attributed over all steps at once.
    """

    rank: int
    waited_ns: int
    share: float
    term: Term | None
    excess_ns: int
    gross_ns: int = 0
    net_ns: int = 0

    @property
    def in_turn(self) -> bool:
        """Whether ranks wait for each other in turn: less than half is left over all steps."""
        return 2 * self.net_ns < self.gross_ns


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator or kernel by name: ns of its own, without what it calls, in a mean step."""

    name: str
    self_ns: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """All ranks of one profiled window.

    ``clock_ns`` bounds the error of comparing the ranks' clocks; None for one rank. ``unsure`` says
    what these traces cannot tell. ``operators`` are those that took longest, the longest first.
    ``capture`` says what was looked at: in an outline compute includes the host's own work.
    """

    device: str
    ranks: tuple[RankBudget, ...]
    clock_ns: int | None
    blame: Blame | None
    unsure: tuple[str, ...] = ()
    operators: tuple[Operator, ...] = ()
    capture: str = OPERATORS

    @property
    def steps(self) -> int:
        return len(self.ranks[0].step_ns)

    @property
    def step_ns(self) -> float:
        return sum(sum(rank.step_ns) for rank in self.ranks) / len(self.ranks) / self.steps

    def mean_ns(self, *terms: Term) -> float:
        """Of these terms together, in a mean step of a mean rank."""
        return sum(rank.mean_ns(*terms) for rank in self.ranks) / len(self.ranks)

    def total_ns(self, term: Term) -> int:
        """Over all ranks and steps: exact."""
        return sum(sum(rank.terms.get(term, ())) for rank in self.ranks)

    @property
    def exposed_share(self) -> float:
        """Communication that nothing hides, over the step."""
        return self.mean_ns(*EXPOSED) / self.step_ns

    @property
    def comm_share(self) -> float:
        mean_comm_ns = sum(sum(rank.comm_ns) for rank in self.ranks) / len(self.ranks) / self.steps
        return mean_comm_ns / self.step_ns

    @property
    def wait_share(self) -> float | None:
        """Waiting for ranks that come late, over the step."""
        return self._share(Term.WAIT)

    @property
    def bubble_share(self) -> float | None:
        """Waiting for a neighbour's send, over the step."""
        return self._share(Term.BUBBLE)

    @property
    def data_share(self) -> float | None:
        """Waiting for data, over the step."""
        return self._share(Term.DATA)

    @property
    def host_idle_share(self) -> float | None:
        """A device without work, over the step."""
        return self._share(Term.IDLE)

    def _share(self, term: Term) -> float | None:
        """None where it was not measured: waits that could not be divided are not 0."""
        if any(term not in rank.terms for rank in self.ranks):
            return None
        return self.mean_ns(term) / self.step_ns

    @property
    def stage_imbalance(self) -> float | None:
        """The busiest rank's compute over the mean rank's, where any was seen."""
        return self.imbalance if self.total_ns(Term.COMPUTE) else None

    @property
    def imbalance(self) -> float:
        """The busiest rank's compute over the mean rank's: 1 is balanced."""
        compute_ns = [rank.mean_ns(Term.COMPUTE) for rank in self.ranks]
        mean = sum(compute_ns) / len(compute_ns)
        return max(compute_ns) / mean if mean else 1.0

    @property
    def load_balance(self) -> float:
        """POP: mean compute / longest compute."""
        return 1 / self.imbalance

    @property
    def communication_efficiency(self) -> float:
        """POP: longest compute / runtime."""
        return max(rank.mean_ns(Term.COMPUTE) for rank in self.ranks) / self.step_ns
