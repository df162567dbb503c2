"""The lost speedup by term: identities in exact fractions, on random budgets."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from harness.analysis.timeline.losses import losses
from harness.record import Budget, Term
from harness.record.budget import RankBudget

KNOWN = [t for t in Term if t is not Term.UNDIVIDED]


@st.composite
def budgets(draw: st.DrawFn, terms: list[Term] = KNOWN) -> Budget:
    """Draw one to three ranks with one to four steps whose terms add up to each step."""
    num_steps = draw(st.integers(1, 4))
    ranks = []
    for rank in range(draw(st.integers(1, 3))):
        by_term = {
            str(term): tuple(
                draw(st.lists(st.integers(0, 999), min_size=num_steps, max_size=num_steps))
            )
            for term in terms
        }
        step_ns = tuple(1 + sum(ns[i] for ns in by_term.values()) for i in range(num_steps))
        compute = by_term[Term.COMPUTE]
        by_term[Term.COMPUTE] = tuple(ns + 1 for ns in compute)
        ranks.append(
            RankBudget(rank=rank, step_ns=step_ns, terms=by_term, comm_ns=(0,) * num_steps,
                       wait_free_ns=None)
        )  # fmt: skip
    return Budget(device="cpu", ranks=tuple(ranks), clock_ns=None, blame=None)


works = st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 4)])


@given(budgets(), budgets(), st.sampled_from([2, 4, 8]), works)
@settings(max_examples=40)
def test_the_lost_speedup_is_the_sum_of_its_terms(
    base: Budget, rung: Budget, ranks: int, work: Fraction
) -> None:
    seen = losses(base, rung, ranks=ranks, work=work)
    step_ns = [sum(sum(r.step_ns) for r in b.ranks) for b in (base, rung)]
    means = [
        Fraction(n, len(b.ranks) * b.steps) for n, b in zip(step_ns, (base, rung), strict=True)
    ]
    assert seen.speedup == ranks * work * means[0] / means[1]
    assert sum(seen.lost.values()) == ranks - seen.speedup
    assert sum(seen.excess_ns.values()) == means[1] - work * means[0]


@given(budgets(), budgets(), works)
@settings(max_examples=40)
def test_the_gain_of_a_term_is_that_of_a_step_without_its_excess(
    base: Budget, rung: Budget, work: Fraction
) -> None:
    """Compare ``gain`` with the efficiency of a step that is computed without the excess."""
    seen = losses(base, rung, ranks=2, work=work)
    for term, excess in seen.excess_ns.items():
        shorter = seen.step_ns - max(excess, Fraction(0))
        if shorter:
            assert float(seen.ideal_ns / shorter - seen.efficiency) == pytest.approx(
                seen.gain(term)
            )


@given(budgets())
def test_a_budget_equal_to_its_baseline_lost_nothing(budget: Budget) -> None:
    seen = losses(budget, budget, ranks=4, work=Fraction(1))
    assert seen.efficiency == 1 and not any(seen.lost.values())
    assert seen.compute_scaling == 1.0


@given(budgets(), budgets([Term.COMPUTE, Term.UNDIVIDED, Term.IDLE]))
@settings(max_examples=30)
def test_communication_is_divided_only_if_both_budgets_divide_it(
    base: Budget, rung: Budget
) -> None:
    seen = losses(base, rung, ranks=2, work=Fraction(1))
    undivided = any(sum(r.terms.get(Term.UNDIVIDED, ())) for r in rung.ranks)
    assert (Term.UNDIVIDED in seen.excess_ns) is (undivided or Term.UNDIVIDED in seen.excess_ns)
    if undivided:
        assert {Term.WAIT, Term.BUBBLE, Term.TRANSFER}.isdisjoint(seen.excess_ns)
