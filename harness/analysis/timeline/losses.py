"""Where a rung's speedup went: its budget against its baseline's, term by term, exactly.

With T the mean step, N ranks for each rank of the baseline and w the work of a rank relative to
the baseline's (1 in weak, 1/N in strong scaling), speedup = N w T_1 / T_N and so

    N - speedup = N (T_N - w T_1) / T_N = sum over terms of N (term_N - w term_1) / T_N

Both budgets sum to their steps in integers, so this holds as an identity of fractions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from harness.record import Budget, Term
from harness.record.budget import EXPOSED

#: A term's words for people; compute has another one when it is a difference.
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
    """The time that a rung lost against linear scaling, by term.

    ``step_ns`` and ``ideal_ns`` are the measured mean step and w T_1; ``excess_ns`` maps every term
    to its share of their difference. ``speedup`` and ``lost`` add up to ``ranks``.
    ``compute_scaling`` is POP's: the baseline's compute for as much work over the rung's.
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
        """Units of speedup that each term cost; their sum is ``ranks - speedup``, exactly."""
        return {term: self.ranks * value / self.step_ns for term, value in self.excess_ns.items()}

    def gain(self, term: Term) -> float:
        """The efficiency that removing a term's excess would give back: the budget is a bound."""
        step_without_ns = self.step_ns - max(self.excess_ns[term], Fraction(0))
        return float(self.ideal_ns / step_without_ns - self.efficiency) if step_without_ns else 0.0


def losses(base: Budget, rung: Budget, *, ranks: int, work: Fraction) -> Losses:
    """Difference two budgets; ``ranks`` and ``work`` are N and w above."""
    known = [
        term
        for term in Term
        if any(term in rank.terms for budget in (base, rung) for rank in budget.ranks)
    ]
    divided = not any(budget.total_ns(Term.UNDIVIDED) for budget in (base, rung))
    if not divided:  # one of them could not be divided: then neither is
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
