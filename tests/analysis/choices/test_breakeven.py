"""Below which link rate a codec wins, against the formula it comes from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st

from harness.analysis.choices.compressors import EncodingCost, breakeven


def cost(step_s: float, sent: float) -> EncodingCost:
    return EncodingCost(
        name="", case="", step_s=step_s, sent_bytes=sent, bytes_per_parameter=0.0, encode_s=None,
        decode_s=None, loss=None, pays={},
    )  # fmt: skip


@given(
    st.floats(1e-3, 1.0), st.floats(1e-3, 1.0), st.floats(1e4, 1e9), st.floats(0.01, 0.99),
    st.floats(1e7, 1e11),
)  # fmt: skip
def test_both_take_as_long_at_the_break_even(
    dense_s: float, codec_s: float, sent: float, share: float, here: float
) -> None:
    """And the codec wins on slower links, loses on faster ones."""
    dense, codec = cost(dense_s, sent), cost(codec_s, share * sent)
    rate = breakeven(codec_s - dense_s, sent - share * sent, here)
    assume(1e5 < rate < 1e12)
    assert codec.at(rate, here) == pytest.approx(dense.at(rate, here), rel=1e-6, abs=1e-9)
    assert codec.at(rate / 2, here) < dense.at(rate / 2, here)
    assert codec.at(rate * 2, here) > dense.at(rate * 2, here)


def test_the_step_where_it_was_measured_is_the_measured_one() -> None:
    assert cost(0.1, 1e6).at(1e9, 1e9) == 0.1


def test_who_sends_no_less_never_wins_and_who_costs_nothing_always_does() -> None:
    assert breakeven(-1.0, 0.0, 1e9) == 0.0
    assert math.isinf(breakeven(-0.01, 1e6, 1e9))
    assert breakeven(0.0, 1e6, 1e9) == pytest.approx(1e9), "it is as fast here, so it is here"
    cancelling = -8e6 / 1e9 * (1 - 1e-12)
    assert math.isinf(breakeven(cancelling, 1e6, 1e9)), "what is left of rounding is no link"


@given(st.floats(0.02, 1.0), st.floats(0.01, 0.99), st.floats(1e8, 1e10), st.floats(1.0, 50.0))
def test_on_faster_links_dense_training_comes_down_to_training_apart(
    step_s: float, share: float, here: float, times: float
) -> None:
    """Never below it, and without a jump where it was measured; on slower links bytes count."""
    dense = replace(cost(step_s, 1e6), exchange_s=share * step_s)
    apart_s = step_s - share * step_s
    assert dense.at(times * here, here) >= apart_s - 1e-9
    assert dense.at(1e9 * here, here) == pytest.approx(apart_s)
    assert dense.at(here * (1 + 1e-9), here) == pytest.approx(dense.at(here, here))
    assert dense.at(here / 2, here) == cost(step_s, 1e6).at(here / 2, here)
