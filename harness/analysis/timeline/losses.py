"""Attribute the lost speedup of a run at N ranks exactly to the terms of its budget.

A budget divides the time of a step into terms, such as compute and waiting for other ranks.

Let T_N be the mean step at N ranks and T_1 the mean step of the baseline. N is the number of ranks
for each rank of the baseline, and w is the work of a rank relative to the baseline's (1 in weak
scaling, 1/N in strong scaling). Then speedup = N w T_1 / T_N and therefore

    N - speedup = N (T_N - w T_1) / T_N = sum over terms of N (term_N - w term_1) / T_N

The terms of both budgets sum to their steps in integers, so this is an identity of fractions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from harness.record import Budget, Term
from harness.record.budget import EXPOSED

#: Displayed name of each term. Only the increase of compute over the baseline is lost, so it is
#: called inflation.
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

    ``step_ns`` is the measured mean step, and ``ideal_ns`` is the step under linear scaling, w T_1.
    ``excess_ns`` maps each term to its part of their difference. ``speedup`` and ``lost`` add up to
    ``ranks``. ``compute_scaling`` is the compute time of the baseline for the same work, divided by
    the compute time at N ranks. This is the definition of POP (Performance Optimisation and
    Productivity).
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
        """Return the speedup that was lost to each term; the sum is exactly ``ranks - speedup``."""
        return {term: self.ranks * value / self.step_ns for term, value in self.excess_ns.items()}

    def gain(self, term: Term) -> float:
        """Return the largest increase of the efficiency if a term's excess is removed."""
        step_without_ns = self.step_ns - max(self.excess_ns[term], Fraction(0))
        return float(self.ideal_ns / step_without_ns - self.efficiency) if step_without_ns else 0.0


def losses(base: Budget, rung: Budget, *, ranks: int, work: Fraction) -> Losses:
    """Return the time lost at a larger world size, from the budgets of both world sizes.

    ``ranks`` and ``work`` are N and w in the docstring of the module.
    """
    known = [
        term
        for term in Term
        if any(term in rank.terms for budget in (base, rung) for rank in budget.ranks)
    ]
    divided = not any(budget.total_ns(Term.UNDIVIDED) for budget in (base, rung))
    if not divided:  # the terms of communication are unknown in at least one of the budgets
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
