"""Numbers are formatted for people, and durations are parsed as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from harness.base.formatting import duration, length_s, rate, si

SCALES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}


@given(st.floats(1e-3, 1e15))
def test_a_formatted_number_parses_back_to_three_digits(value: float) -> None:
    figure, _, unit = si(value, "B").partition(" ")
    assert float(figure) * SCALES[unit.removesuffix("B")] == pytest.approx(value, rel=6e-3)


@given(st.integers(0, 10**6))
def test_a_formatted_duration_parses_back(seconds: int) -> None:
    parts = [int(part) for part in duration(seconds).split(":")]
    read = sum(part * 60**i for i, part in enumerate(reversed(parts)))
    assert read == seconds and all(part < 60 for part in parts[1:])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("330", 330), ("330s", 330), ("5m", 300), ("1.5h", 5400), ("30d", 2592000), (" 2h ", 7200)],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert length_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-5m", "5 m", "1e3", "5w", "five", "1,5h"])
def test_text_that_is_not_a_duration_returns_none(text: str) -> None:
    assert length_s(text) is None


def test_unknown_numbers_are_printed_as_not_available() -> None:
    assert si(None, "B") == rate(None) == "n/a"
    assert si(0.107, "1") == "0.107"
    assert (si(0.0123, "s"), si(0, "s"), rate(1234.5), rate(12.3456)) == (
        "12.3 ms", "0 s", "1,234", "12.35",
    )  # fmt: skip
