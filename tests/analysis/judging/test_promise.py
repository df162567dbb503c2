"""The predicted number of further pairs, compared with the judge on pairs with the same scatter."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import assume, example, given, strategies as st

from harness.analysis.judging.judge import judge_values
from harness.analysis.judging.promise import more_pairs
from harness.analysis.judging.question import Question, bias, undecided
from harness.cases import BoundSource, Form, Threshold
from harness.record import Reason, Status

RULE = Threshold(
    name="a", case="*", metric="throughput_ratio", at_least=0.8, source=BoundSource.REQUIREMENT
)


def asked(values: tuple[float, ...], *factors: float) -> Question:
    caveats = tuple(bias(factor, "load") for factor in factors)
    return Question(
        name="a", case="a", metric=RULE.metric, against="other", first=values, caveats=caveats
    )


@given(st.floats(0.5, 1.2), st.floats(0.001, 0.2), st.integers(2, 4))
# With few pairs, the mean misses a bound by about the allowance.
@example(0.796875, 0.001953125, 2)
def test_the_predicted_number_of_pairs_decides(mean: float, spread: float, half: int) -> None:
    """Repeated values have the same mean and no larger scatter."""
    values = tuple(mean * math.exp(s * spread) for s in (-1, 1)) * half
    more = more_pairs(asked(values), RULE, Reason.SPANS_BOUND)
    assume(more is not None)
    assert more is not None
    whole = (values * 100)[: len(values) + more]
    assert judge_values(whole, RULE, Form.RATIO).status in (Status.PASS, Status.FAIL)


@given(st.floats(0.85, 1.2), st.floats(0.001, 0.1), st.floats(0.3, 1.0))
def test_with_load_more_pairs_are_needed_or_none_suffice(
    mean: float, spread: float, given_back: float
) -> None:
    values = tuple(mean * math.exp(s * spread) for s in (-1, 1, -1, 1))
    alone = more_pairs(asked(values), RULE, Reason.SPANS_BOUND)
    loaded = more_pairs(asked(values, given_back), RULE, Reason.NOISY_HOST)
    if mean * given_back < 0.8:
        assert loaded is None, "no number of pairs can rule out the load as the cause"
    else:
        assert loaded is None or (alone is not None and loaded >= alone)


def test_more_pairs_do_not_resolve_a_caveat() -> None:
    caveats = (undecided(Reason.NOISY_HOST, "too hot"),)
    values = (0.9, 1.0, 0.9, 1.0)
    question = asked(values)
    assert more_pairs(question, RULE, Reason.NOISY_HOST) is not None
    assert more_pairs(replace(question, caveats=caveats), RULE, Reason.NOISY_HOST) is None
    assert more_pairs(question, None, Reason.NO_RULE) is None
    assert more_pairs(question, RULE, Reason.UNCONFIRMED) is None


def test_too_few_pairs_ask_for_those_of_the_first_look() -> None:
    assert more_pairs(asked((0.9, 1.0)), RULE, Reason.TOO_FEW_PAIRS) == 2
