"""The period of a training run is the shortest one that repeats often enough over most steps."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from harness.analysis.script.period import REPEATS, period

words = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("message", "rank"),
    [("AAAA", 1), ("ABABAB", 2), ("AABAABAAB", 3), ("DDDDDGDDDDDGDDDDDG", 6),
     ("ABABABA", 2), ("XAAAAAAAAA", 1), ("AA", None), ("ABCABC", None), ("AAAAAB", None),
     ("ABAAAA", None), ("", None)],
)  # fmt: skip
def test_known_sequences_have_their_period(message: str, rank: int | None) -> None:
    assert period(message) == rank


@given(word=words, times=st.integers(REPEATS, 6))
def test_a_repeated_sequence_has_a_period_that_divides_it(word: list[int], times: int) -> None:
    length = period(word * times)
    assert length is not None and len(word) % length == 0
    assert word * times == (word * times)[:length] * (len(word) * times // length)


@given(word=words, times=st.integers(REPEATS, 6))
def test_a_new_element_at_the_end_has_no_period(word: list[int], times: int) -> None:
    assert period([*word * times, 9]) is None
