"""The judge's decisions on pairs: which pass, which fail, and which must stay undecided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.analysis.judging.judge import Judged, estimate, judge_values, lag1, worst
from harness.base.errors import Exit
from harness.cases import BoundSource, Form, Statistic, Threshold
from harness.record import Reason, Status
from harness.record.outcome import exit_status

EPOCHS = {1: 480.0, 2: 245.0, 4: 128.0, 8: 68.0}


def rule(metric: str = "efficiency", **kw: object) -> Threshold:
    base: dict[str, object] = {
        "name": "r",
        "case": "*",
        "metric": metric,
        "unit": "1",
        "source": BoundSource.REQUIREMENT,
    }
    return Threshold(**{**base, **kw})  # type: ignore[arg-type]


def decide(values: list[float], threshold: Threshold | None, form: Form = Form.RATIO) -> Judged:
    return judge_values(values, threshold, form)


def scattered(center: float, n: int = 8, sd: float = 0.005, seed: int = 1) -> list[float]:
    """Return seeded pairs around a value; their logarithms have exactly this mean and standard
    deviation.
    """
    raw = np.random.default_rng(seed).normal(0, 1, n)
    return (center * np.exp((raw - raw.mean()) / raw.std(ddof=1) * sd)).tolist()


def test_the_claimed_speedups_do_not_follow_from_the_published_times() -> None:
    """From 480, 245, 128 and 68 s per epoch, the claimed speedups of 3.8x and 7.6x do not follow."""

    def value(n: int, ideal: int) -> float:
        return estimate([EPOCHS[1] / EPOCHS[n] / ideal], Form.RATIO).value

    assert [round(value(n, 1), 2) for n in (2, 4, 8)] == [1.96, 3.75, 7.06]
    assert [round(value(n, n), 3) for n in (2, 4, 8)] == [0.980, 0.938, 0.882]
    assert value(4, 1) < 3.8 and value(8, 1) < 7.6


@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_published_number_is_too_few_pairs(n: int) -> None:
    answer = decide([EPOCHS[1] / EPOCHS[n] / n], rule(at_least=0.85))
    assert (answer.status, answer.reason) == (Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS)


@pytest.mark.parametrize(
    ("n", "metric", "bound", "status"),
    [
        (2, "efficiency", 0.85, Status.PASS),
        (4, "efficiency", 0.85, Status.PASS),
        (8, "efficiency", 0.85, Status.PASS),
        (4, "speedup", 3.8, Status.FAIL),
        (8, "speedup", 7.6, Status.FAIL),
        (2, "speedup", 1.95, Status.INCONCLUSIVE),
    ],
)
def test_pairs_around_the_published_times_are_decided(
    n: int, metric: str, bound: float, status: Status
) -> None:
    value = EPOCHS[1] / EPOCHS[n] / (n if metric == "efficiency" else 1)
    assert decide(scattered(value), rule(metric, at_least=bound)).status is status


def test_a_result_without_a_rule_is_recorded() -> None:
    assert decide(scattered(0.9), None).status is Status.RECORDED


@pytest.mark.parametrize("source", [BoundSource.CLAIMED, BoundSource.PROVISIONAL])
def test_claimed_and_provisional_bounds_do_not_pass(source: BoundSource) -> None:
    answer = decide(scattered(0.95), rule(at_least=0.85, source=source))
    assert (answer.status, answer.reason) == (Status.RECORDED, Reason.PROVISIONAL)


def test_a_rule_may_have_a_lower_and_an_upper_bound() -> None:
    both = rule(at_least=0.82, at_most=0.88)
    assert decide(scattered(0.85), both).status is Status.PASS
    assert decide(scattered(0.95), both).status is Status.FAIL
    assert decide(scattered(0.70), both).status is Status.FAIL
    assert decide(scattered(0.88), both).status is Status.INCONCLUSIVE


def test_statistic_worst_judges_the_worst_pair() -> None:
    values = [*scattered(0.95, n=7), 0.6]
    assert decide(values, rule(at_least=0.85, statistic=Statistic.WORST)).status is Status.FAIL


def test_form_saved_reverses_the_interval() -> None:
    answer = decide(scattered(0.4), rule("memory_saved", at_least=0.5), Form.SAVED)
    assert answer.status is Status.PASS
    assert answer.estimate.low < answer.estimate.value < answer.estimate.high  # type: ignore[operator]
    assert answer.estimate.value == pytest.approx(0.6, abs=0.01)


@given(st.lists(st.floats(0.5, 1.5), min_size=8, max_size=16), st.floats(0.5, 1.5))
def test_a_higher_bound_never_turns_fail_into_pass(values: list[float], bound: float) -> None:
    order = [Status.PASS, Status.INCONCLUSIVE, Status.FAIL]
    lower = decide(values, rule(at_least=bound)).status
    higher = decide(values, rule(at_least=bound * 1.05)).status
    assert order.index(higher) >= order.index(lower)


def test_detectable_change_is_reported() -> None:
    """With sd 1.3 % and 8 pairs: radius 1.293 sd, allowance 1 %, t(0.9, 7) / sqrt(8) = 0.500 sd; in
    total 3.4 %.
    """
    answer = decide(scattered(0.9, sd=0.013), rule(at_least=0.85))
    assert answer.mde == pytest.approx(0.0339, abs=2e-4)


@pytest.mark.parametrize("n", [2, 3])
def test_fewer_than_four_pairs_decide_nothing(n: int) -> None:
    for value in (0.5, 0.99):
        answer = decide(scattered(value, n=n, sd=1e-5), rule(at_least=0.85))
        assert (answer.status, answer.reason) == (Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS)


def test_a_gap_smaller_than_the_allowance_for_slow_launches_does_not_pass() -> None:
    """After 6 pairs, one launch in five may be 5 % slow without having been seen, which is 1 % of
    the bound.
    """
    narrow = [
        decide(scattered(0.85 * f, n=6, sd=1e-5), rule(at_least=0.85)) for f in (1.009, 1.011)
    ]
    assert [(j.status, j.reason) for j in narrow] == [
        (Status.INCONCLUSIVE, Reason.TOO_CLOSE),
        (Status.PASS, Reason.MET),
    ]
    assert narrow[1].allowance == pytest.approx(0.01)


def test_four_pairs_leave_room_for_an_unseen_slower_half() -> None:
    """Half of the launches may be 10 % slower and unseen: 5 % of the bound; from 6 pairs on it is 1
    %.
    """
    exact = rule(at_least=0.85)
    narrow = [decide(scattered(0.85 * f, n=4, sd=1e-5), exact) for f in (1.049, 1.053)]
    assert [(j.status, j.reason) for j in narrow] == [
        (Status.INCONCLUSIVE, Reason.TOO_CLOSE),
        (Status.PASS, Reason.MET),
    ]
    assert "slow half" in narrow[0].detail and "5.0%" in narrow[1].detail
    assert decide(scattered(0.85 * 1.049, n=6, sd=1e-5), exact).status is Status.PASS
    then = judge_values([0.85 * 1.02] * 4, exact, Form.RATIO, halves=False)
    assert then.status is Status.PASS, "records before schema 9 are judged without this allowance"


def test_the_allowance_shrinks_with_more_pairs() -> None:
    """After 20 pairs, 0.8 % of the bound suffices, and byte counts need no allowance."""
    assert decide(scattered(0.85 * 1.008, n=20, sd=1e-5), rule(at_least=0.85)).status is Status.PASS
    exact = rule("sent_bytes", at_most=100.0)
    assert judge_values([100.0] * 4, exact, Form.ABSOLUTE, timed=False).status is Status.PASS
    assert judge_values([100.0] * 4, exact, Form.ABSOLUTE).status is Status.INCONCLUSIVE


def test_a_trend_that_would_cross_the_bound_does_not_pass() -> None:
    """The values fall by 0.005 per pair, so 0.88 becomes 0.85 after about 10 more pairs."""
    falling = [0.8915 - 0.005 * i + 0.0002 * (-1) ** i for i in range(6)]
    answer = judge_values(falling, rule(at_least=0.85), Form.RATIO, horizon=16)
    assert (answer.status, answer.reason) == (Status.INCONCLUSIVE, Reason.TREND)
    assert judge_values(falling, rule(at_least=0.85), Form.RATIO, horizon=6).status is Status.PASS
    rising = judge_values(falling[::-1], rule(at_least=0.85), Form.RATIO, horizon=16)
    assert rising.status is Status.PASS
    level = judge_values(falling, rule(at_most=0.95), Form.RATIO, horizon=16)
    assert level.status is Status.PASS, "a falling trend cannot cross an upper bound"


def test_an_early_fail_needs_a_clear_gap() -> None:
    """With fewer than 8 pairs, a FAIL also leaves room for launches that were not seen."""
    for n, status in ((4, Status.INCONCLUSIVE), (8, Status.FAIL)):
        assert decide(scattered(0.845, n=n, sd=1e-5), rule(at_least=0.85)).status is status


def test_equal_values_without_scatter_are_decided() -> None:
    """Counted bytes do not scatter."""
    exact = rule("sent_bytes", at_most=100.0)
    assert judge_values([100.0] * 8, exact, Form.ABSOLUTE, timed=False).status is Status.PASS
    assert judge_values([101.0] * 8, exact, Form.ABSOLUTE, timed=False).status is Status.FAIL


def test_an_absolute_value_is_judged_against_both_bounds() -> None:
    band = rule("peak_bytes", at_least=90.0, at_most=110.0)
    assert decide(scattered(100, sd=0.01), band, Form.ABSOLUTE).status is Status.PASS
    assert decide(scattered(120, sd=0.01), band, Form.ABSOLUTE).status is Status.FAIL
    assert decide(scattered(109, sd=0.01), band, Form.ABSOLUTE).status is Status.INCONCLUSIVE


def test_the_worst_pair_depends_on_the_side_of_the_bound() -> None:
    assert worst([0.9, 0.8], rule(at_least=0.5), Form.RATIO) == 0.8
    assert worst([0.9, 0.8], rule(at_most=1.5), Form.RATIO) == 0.9
    assert worst([0.4, 0.3], rule(at_least=0.5), Form.SAVED) == pytest.approx(0.6)
    assert worst([], None, Form.RATIO) is None


def test_lag1_autocorrelation() -> None:
    assert lag1([1.0, -1.0] * 10) == pytest.approx(-0.95)
    assert lag1([1.0, 2.0, 3.0]) is None and lag1([1.0] * 8) is None


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], Exit.NOTHING_JUDGED),
        ([Status.RECORDED, Status.SKIP], Exit.NOTHING_JUDGED),
        ([Status.PASS, Status.RECORDED], Exit.PASSED),
        ([Status.PASS, Status.INCONCLUSIVE], Exit.INCONCLUSIVE),
        ([Status.PASS, Status.INCONCLUSIVE, Status.FAIL], Exit.FAILED),
        ([Status.PASS, Status.INCONCLUSIVE, Status.FAIL, Status.ERROR], Exit.ERROR),
    ],
)
def test_exit_status(statuses: list[Status], code: Exit) -> None:
    assert exit_status(statuses) is code


def test_inconclusive_alone_does_not_pass() -> None:
    """Even if INCONCLUSIVE is tolerated, at least one verdict must be a PASS."""
    only, beside = [Status.INCONCLUSIVE], [Status.INCONCLUSIVE, Status.PASS]
    assert exit_status(only, inconclusive_fails=False) is Exit.NOTHING_JUDGED
    assert exit_status(beside, inconclusive_fails=False) is Exit.PASSED
