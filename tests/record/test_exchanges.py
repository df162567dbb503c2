"""In which steps ranks talk that train apart for a while."""

from hypothesis import given, strategies as st

from harness.record import exchanges


def steps(count: int, period: int, until: int = 0, growth: float = 1.0) -> list[int]:
    return [s for s in range(count) if exchanges(range(s, s + 1), period, until, growth)]


def test_periods_are_whole_grow_and_come_after_the_first_steps() -> None:
    assert steps(9, 4) == [3, 7]
    assert steps(9, 4, until=2) == [0, 1, 3, 7]
    assert steps(15, 2, growth=2.0) == [1, 5, 13]
    assert steps(4, 1) == [0, 1, 2, 3]


@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.integers(0, 20),
    st.floats(1.0, 3.0),
)  # fmt: skip
def test_windows_add_up(one: int, other: int, period: int, until: int, growth: float) -> None:
    """Steps counted in two windows are those of both together."""
    end = one + other
    parts = [range(one), range(one, end)]
    told = [exchanges(part, period, until, growth) for part in parts]
    assert sum(told) == exchanges(range(end), period, until, growth) <= end
