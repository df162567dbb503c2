"""Attribute the lost speedup of a run at N ranks to the terms of its budget, exactly.

Let T be the mean step, N the number of ranks for each rank of the baseline, and w the work of a
rank relative to the baseline's (1 in weak scaling, 1/N in strong scaling). Then speedup = N w T_1 /
T_N and therefore

    N - speedup = N (T_N - w T_1) / T_N = sum over terms of N (term_N - w term_1) / T_N

The terms of both budgets sum to their steps in integers, so this is an identity of fractions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from harness.record import Budget, Term
from harness.record.budget import EXPOSED

#: Displayed name of each term. Compute is called inflation because it is a difference here.
WORDS = {
    Term.COMPUTE: "compute inflation",
    Term.MOVE: "exposed copies",
    Term.WAIT: "waiting for ranks",
    Term.BUBBLE: "pipeline bubble",
    Term.TRANSFER: "exposed transfer",
    Term.UNDIVIDED: "exposed communication",
    Term.DATA: "data stall",
    Term.LAUNCH: "launch",
    Term.IDLE: "host idle",
    Term.OTHER: "queued device idle",
}


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The time that a run at N ranks lost against linear scaling, by term.

    ``step_ns`` and ``ideal_ns`` are the measured mean step and w T_1. ``excess_ns`` maps each term
    to its part of their difference. ``speedup`` and ``lost`` add up to ``ranks``.
    ``compute_scaling`` follows POP (Performance Optimisation and Productivity): the compute of the
    baseline for the same work, divided by the compute at N ranks.
    """

    ranks: int
    step_ns: Fraction
    ideal_ns: Fraction
    excess_ns: Mapping[Term, Fraction]
    compute_scaling: float | None = None

    @property
    def speedup(self) -> Fraction:
        return self.ranks * self.ideal_ns / self.step_ns

    @property
    def efficiency(self) -> Fraction:
        return self.ideal_ns / self.step_ns

    @property
    def lost(self) -> Mapping[Term, Fraction]:
        """Return the speedup that each term cost; the sum is ``ranks - speedup`` exactly."""
        return {term: self.ranks * value / self.step_ns for term, value in self.excess_ns.items()}

    def gain(self, term: Term) -> float:
        """Return the most that removing a term's excess can add to the efficiency."""
        step_without_ns = self.step_ns - max(self.excess_ns[term], Fraction(0))
        return float(self.ideal_ns / step_without_ns - self.efficiency) if step_without_ns else 0.0


def losses(base: Budget, rung: Budget, *, ranks: int, work: Fraction) -> Losses:
    """Return the difference of two budgets; ``ranks`` and ``work`` are N and w of the module."""
    known = [
        term
        for term in Term
        if any(term in rank.terms for budget in (base, rung) for rank in budget.ranks)
    ]
    divided = not any(budget.total_ns(Term.UNDIVIDED) for budget in (base, rung))
    if not divided:  # if one budget could not be divided into terms of communication, neither is
        known = [term for term in known if term not in EXPOSED] + [Term.UNDIVIDED]
    busy = _term(rung, Term.COMPUTE, divided)
    difference = Losses(
        ranks=ranks,
        step_ns=_mean(rung),
        ideal_ns=work * _mean(base),
        excess_ns={
            term: _term(rung, term, divided) - work * _term(base, term, divided) for term in known
        },
        compute_scaling=float(work * _term(base, Term.COMPUTE, divided) / busy) if busy else None,
    )
    if sum(difference.lost.values(), Fraction(0)) != ranks - difference.speedup:
        raise AssertionError("the lost speedup is not the sum of its terms")
    return difference


def _mean(budget: Budget) -> Fraction:
    return Fraction(
        sum(sum(rank.step_ns) for rank in budget.ranks), len(budget.ranks) * budget.steps
    )


def _term(budget: Budget, term: Term, divided: bool) -> Fraction:
    terms = (term,) if divided or term is not Term.UNDIVIDED else EXPOSED
    total = sum(budget.total_ns(t) for t in terms)
    return Fraction(total, len(budget.ranks) * budget.steps)
