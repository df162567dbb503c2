"""The time budget of a step, which assigns every nanosecond of each rank and step to one term.

compute, exposed move, wait, bubble, exposed transfer, data, launch, host idle, other

Each term takes only time that the terms before it left, so their sum is exactly the step time.
Communication that overlaps with compute is in no term, because it costs nothing.
``analysis/timeline`` computes budgets from traces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: How a window was captured: with every operator, or with only waits, spans and ranges (outline).
OPERATORS = "operators"
OUTLINE = "outline"


class Term(StrEnum):
    """A part of the time of a step.

    ``wait``: exposed communication before the last rank had arrived. ``bubble``: the same for a
    send or recv. ``exposed_comm``: exposed communication that could not be divided, because traces
    of other ranks are missing.
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


#: The terms of exposed communication.
EXPOSED = (Term.WAIT, Term.BUBBLE, Term.TRANSFER, Term.UNDIVIDED)


@dataclass(frozen=True, kw_only=True)
class RankBudget:
    """The steps of one rank: ns of each term in each step. The terms of every step add up to
    ``step_ns``.

    ``comm_ns`` is all communication, overlapped or not. ``wait_free_ns`` estimates ``wait`` without
    comparing clocks: the duration of a collective minus the shortest one among its ranks.
    """

    rank: int
    step_ns: tuple[int, ...]
    terms: Mapping[str, tuple[int, ...]]
    comm_ns: tuple[int, ...]
    wait_free_ns: tuple[int, ...] | None

    def mean_ns(self, *terms: Term) -> float:
        """Return the time of these terms together in a mean step, in ns."""
        return sum(sum(self.terms.get(term, ())) for term in terms) / len(self.step_ns)


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The rank for which the other ranks waited most, and the term that delayed it.

    Waiting is attributed within each step and then added up. ``waited_ns`` is the time that other
    ranks waited for this rank per step, minus its own waiting in the same step: a rank that is late
    because it waited passes the blame on. ``share`` is its part of all waiting after this
    subtraction. ``gross_ns`` is all waiting of all ranks per step. ``net_ns`` is the time that
    other ranks waited for this rank minus its waiting, over all steps together. ``term`` is the
    term that exceeds the median of the other ranks most, by ``excess_ns``. Records until schema 9
    have no gross, and attributed waiting over all steps at once.
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
        """Whether ranks wait for each other alternately: less than half of the waiting remains over
        all steps.
        """
        return 2 * self.net_ns < self.gross_ns


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator or kernel by name: its ns in a mean step, without the operators that it calls."""

    name: str
    self_ns: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budgets of all ranks of one profiled window.

    ``clock_ns`` is the error bound of comparing the ranks' clocks; None for one rank. ``unsure``
    lists what these traces cannot show. ``operators`` are those that took longest, the longest
    first. ``capture`` says what was recorded; in an outline, compute includes work of the host.
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
        """The number of steps in the window."""
        return len(self.ranks[0].step_ns)

    @property
    def step_ns(self) -> float:
        """The mean time of a step over all ranks, in ns."""
        return sum(sum(rank.step_ns) for rank in self.ranks) / len(self.ranks) / self.steps

    def mean_ns(self, *terms: Term) -> float:
        """Return the time of these terms together in a mean step of a mean rank, in ns."""
        return sum(rank.mean_ns(*terms) for rank in self.ranks) / len(self.ranks)

    def total_ns(self, term: Term) -> int:
        """Return the time of a term over all ranks and steps, in ns. It is exact."""
        return sum(sum(rank.terms.get(term, ())) for rank in self.ranks)

    @property
    def exposed_share(self) -> float:
        """The share of communication in a step that does not overlap with compute."""
        return self.mean_ns(*EXPOSED) / self.step_ns

    @property
    def comm_share(self) -> float:
        """The share of all communication in a step, overlapped or not."""
        mean_comm_ns = sum(sum(rank.comm_ns) for rank in self.ranks) / len(self.ranks) / self.steps
        return mean_comm_ns / self.step_ns

    @property
    def wait_share(self) -> float | None:
        """The share of waiting for late ranks in a step."""
        return self._share(Term.WAIT)

    @property
    def bubble_share(self) -> float | None:
        """The share of waiting for the send of a neighbouring stage in a step."""
        return self._share(Term.BUBBLE)

    @property
    def data_share(self) -> float | None:
        """The share of waiting for data in a step."""
        return self._share(Term.DATA)

    @property
    def host_idle_share(self) -> float | None:
        """The share of a step in which the device has no work."""
        return self._share(Term.IDLE)

    def _share(self, term: Term) -> float | None:
        """Return the share of a term; None if it was not measured, because undivided waits are not
        0.
        """
        if any(term not in rank.terms for rank in self.ranks):
            return None
        return self.mean_ns(term) / self.step_ns

    @property
    def stage_imbalance(self) -> float | None:
        """The compute time of the busiest rank over that of the mean rank, if any compute was
        recorded.
        """
        return self.imbalance if self.total_ns(Term.COMPUTE) else None

    @property
    def imbalance(self) -> float:
        """The compute time of the busiest rank over that of the mean rank: 1 is balanced."""
        compute_ns = [rank.mean_ns(Term.COMPUTE) for rank in self.ranks]
        mean = sum(compute_ns) / len(compute_ns)
        return max(compute_ns) / mean if mean else 1.0

    @property
    def load_balance(self) -> float:
        """The load balance of the POP metrics: mean compute / longest compute."""
        return 1 / self.imbalance

    @property
    def communication_efficiency(self) -> float:
        """The communication efficiency of the POP metrics: longest compute / runtime."""
        return max(rank.mean_ns(Term.COMPUTE) for rank in self.ranks) / self.step_ns
