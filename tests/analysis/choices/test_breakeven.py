"""The link rate below which a compressor is faster, compared with the formula that it is derived
from.
"""

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
def test_dense_and_compressed_steps_take_equal_time_at_the_break_even(
    dense_s: float, codec_s: float, sent: float, share: float, here: float
) -> None:
    """Compression is faster on slower links and slower on faster ones."""
    dense, codec = cost(dense_s, sent), cost(codec_s, share * sent)
    rate = breakeven(codec_s - dense_s, sent - share * sent, here)
    assume(1e5 < rate < 1e12)
    assert codec.at(rate, here) == pytest.approx(dense.at(rate, here), rel=1e-6, abs=1e-9)
    assert codec.at(rate / 2, here) < dense.at(rate / 2, here)
    assert codec.at(rate * 2, here) > dense.at(rate * 2, here)


def test_at_the_measured_link_rate_the_step_time_is_the_measured_one() -> None:
    assert cost(0.1, 1e6).at(1e9, 1e9) == 0.1


def test_break_even_is_zero_without_savings_and_infinite_without_cost() -> None:
    assert breakeven(-1.0, 0.0, 1e9) == 0.0
    assert math.isinf(breakeven(-0.01, 1e6, 1e9))
    assert breakeven(0.0, 1e6, 1e9) == pytest.approx(1e9), (
        "equal speed at this rate makes it the break-even"
    )
    cancelling = -8e6 / 1e9 * (1 - 1e-12)
    assert math.isinf(breakeven(cancelling, 1e6, 1e9)), "a rounding residue must not become a rate"


@given(st.floats(0.02, 1.0), st.floats(0.01, 0.99), st.floats(1e8, 1e10), st.floats(1.0, 50.0))
def test_on_faster_links_dense_steps_approach_steps_without_communication(
    step_s: float, share: float, here: float, times: float
) -> None:
    """The step time is never below that limit and is continuous at the measured rate; on slower
    links it depends on the bytes.
    """
    dense = replace(cost(step_s, 1e6), exchange_s=share * step_s)
    apart_s = step_s - share * step_s
    assert dense.at(times * here, here) >= apart_s - 1e-9
    assert dense.at(1e9 * here, here) == pytest.approx(apart_s)
    assert dense.at(here * (1 + 1e-9), here) == pytest.approx(dense.at(here, here))
    assert dense.at(here / 2, here) == cost(step_s, 1e6).at(here / 2, here)
