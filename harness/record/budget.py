"""The time budget of a step, which assigns every nanosecond of each rank and step to one term.

The terms, in this order, are: compute, exposed move, wait, bubble, exposed transfer, data, launch
(of kernels), host idle, other.

A term gets only the time that no earlier term has, so the sum of the terms is exactly the step
time. Communication that overlaps with compute is in no term, because it does not make a step
longer. ``analysis/timeline`` computes budgets from traces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: Value of ``Budget.capture``: the profiler recorded every operator.
OPERATORS = "operators"
#: Value of ``Budget.capture``: the profiler recorded only waits, spans and ranges.
OUTLINE = "outline"


class Term(StrEnum):
    """A part of the time of a step.

    Exposed communication does not overlap with compute. ``wait`` is exposed communication before
    the last rank has arrived at a collective. ``bubble`` is exposed communication before the peer
    of a send or recv has arrived. ``exposed_comm`` is exposed communication that cannot be divided,
    because traces of other ranks are missing. ``launch`` is the time of kernel launches.
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
    """The time budget of the steps of one rank, in ns.

    ``terms`` has the time of each term in each step. The terms of a step add up to its ``step_ns``.
    ``comm_ns`` is the time of all communication in each step, overlapped or not. ``wait_free_ns``
    estimates ``wait`` without comparing clocks: it is the duration of a collective on this rank
    minus the shortest duration on any of its ranks.
    """

    rank: int
    step_ns: tuple[int, ...]
    terms: Mapping[str, tuple[int, ...]]
    comm_ns: tuple[int, ...]
    wait_free_ns: tuple[int, ...] | None

    def mean_ns(self, *terms: Term) -> float:
        """Return the mean time per step of these terms together, in ns."""
        return sum(sum(self.terms.get(term, ())) for term in terms) / len(self.step_ns)


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The rank for which the other ranks waited most, and the term that delayed it.

    Waiting is attributed within each step and then added up. ``waited_ns`` is the time per step for
    which other ranks waited for this rank, minus the time for which this rank waited in the same
    step. The subtraction passes the blame on from a rank that is late because it waited. ``share``
    is the fraction of all waiting, after this subtraction, that this rank caused. ``gross_ns`` is
    the waiting of all ranks per step. ``net_ns`` is computed like ``waited_ns``, except that the
    subtraction is done once for the sum over all steps. ``term`` is the term of this rank that
    exceeds the median of the other ranks most, and ``excess_ns`` is the excess. Records until
    schema 9 have no ``gross_ns`` and attribute the waiting of all steps together.
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
        """Whether ranks wait for each other alternately.

        In this case most of the waiting cancels out over the steps, and ``net_ns`` is less than
        half of ``gross_ns``.
        """
        return 2 * self.net_ns < self.gross_ns


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The operators or kernels with one name.

    ``self_ns`` is their time in a mean step, in ns, without the operators that they call. ``count``
    is their number in a mean step, rounded up.
    """

    name: str
    self_ns: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budgets of all ranks of one profiled window.

    ``clock_ns`` is the error bound of comparing the ranks' clocks, in ns; None for one rank.
    ``wait_ns`` are the ends of the interval of the wait in a step, in ns: the clocks may be off by
    their error bound in each collective, and durations alone give a second estimate.
    ``unsure`` lists what these traces cannot show. ``operators`` are the operators that took the
    most time, in descending order. ``capture`` is ``OPERATORS`` or ``OUTLINE``; in an outline, the
    term compute includes work of the host.
    """

    device: str
    ranks: tuple[RankBudget, ...]
    clock_ns: int | None
    blame: Blame | None
    unsure: tuple[str, ...] = ()
    operators: tuple[Operator, ...] = ()
    capture: str = OPERATORS
    wait_ns: tuple[float, float] | None = None

    @property
    def steps(self) -> int:
        """The number of steps in the window."""
        return len(self.ranks[0].step_ns)

    @property
    def step_ns(self) -> float:
        """The mean time of a step over all ranks, in ns."""
        return sum(sum(rank.step_ns) for rank in self.ranks) / len(self.ranks) / self.steps

    def mean_ns(self, *terms: Term) -> float:
        """Return the time of these terms together, as a mean over steps and ranks, in ns."""
        return sum(rank.mean_ns(*terms) for rank in self.ranks) / len(self.ranks)

    def total_ns(self, term: Term) -> int:
        """Return the sum of a term over all ranks and steps, in ns."""
        return sum(sum(rank.terms.get(term, ())) for rank in self.ranks)

    @property
    def exposed_share(self) -> float:
        """The fraction of a step in which communication does not overlap with compute."""
        return self.mean_ns(*EXPOSED) / self.step_ns

    @property
    def comm_share(self) -> float:
        """The time of all communication, overlapped or not, as a fraction of the step time."""
        mean_comm_ns = sum(sum(rank.comm_ns) for rank in self.ranks) / len(self.ranks) / self.steps
        return mean_comm_ns / self.step_ns

    @property
    def wait_share(self) -> float | None:
        """The fraction of a step that is spent waiting for late ranks."""
        return self._share(Term.WAIT)

    @property
    def bubble_share(self) -> float | None:
        """The fraction of a step that is spent waiting for the peer of a send or recv."""
        return self._share(Term.BUBBLE)

    @property
    def data_share(self) -> float | None:
        """The fraction of a step that is spent waiting for data."""
        return self._share(Term.DATA)

    @property
    def host_idle_share(self) -> float | None:
        """The fraction of a step in which the device has no work."""
        return self._share(Term.IDLE)

    def _share(self, term: Term) -> float | None:
        """Return a term as a fraction of the step time.

        Return None if the traces of a rank do not show the term separately. Its time may then be
        part of the communication that cannot be divided.
        """
        if any(term not in rank.terms for rank in self.ranks):
            return None
        return self.mean_ns(term) / self.step_ns

    @property
    def stage_imbalance(self) -> float | None:
        """The longest compute time of a rank divided by the mean over ranks.

        None if no compute was recorded.
        """
        return self.imbalance if self.total_ns(Term.COMPUTE) else None

    @property
    def imbalance(self) -> float:
        """The longest compute time of a rank divided by the mean over ranks; 1 is balanced."""
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
