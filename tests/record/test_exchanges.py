"""Strategies that synchronize only in some steps: which steps these are and how many bytes they
send.
"""

import pytest
from hypothesis import given, strategies as st

from harness.record import Expected, bytes_sent, exchanges


def steps(count: int, period: int, until: int = 0, growth: float = 1.0) -> list[int]:
    return [s for s in range(count) if exchanges(range(s, s + 1), period, until, growth)]


def test_synchronizing_steps_follow_the_warm_up_and_grow() -> None:
    assert steps(9, 4) == [3, 7]
    assert steps(9, 4, until=2) == [0, 1, 3, 7]
    assert steps(15, 2, growth=2.0) == [1, 5, 13]
    assert steps(4, 1) == [0, 1, 2, 3]


@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.integers(0, 20),
    st.floats(1.0, 3.0),
)  # fmt: skip
def test_exchanges_of_adjacent_windows_add_up(
    one: int, other: int, period: int, until: int, growth: float
) -> None:
    """The synchronizing steps of two adjacent windows add up to those of both together."""
    end = one + other
    parts = [range(one), range(one, end)]
    exchanged = [exchanges(part, period, until, growth) for part in parts]
    assert sum(exchanged) == exchanges(range(end), period, until, growth) <= end


@given(st.integers(0, 30), st.integers(1, 40), st.integers(1, 5), st.integers(0, 20))
def test_bytes_count_steps_that_send_full_gradients(
    first: int, count: int, period: int, until: int
) -> None:
    """A step in ``whole_steps`` sends full gradients; the periodic bytes apply only after these
    steps.
    """
    expected = Expected(
        sent_bytes=(3.0 / period,),
        payload_bytes={},
        largest_message=0.0,
        module="",
        ideal_efficiency=1.0,
        memory_bytes=0,
        formula="",
        global_batch=1,
        period=period,
        until=until,
        whole_steps=((0, min(4, until), 1), (4, until, 2)),
        whole_bytes=100.0,
    )
    wanted = 0.0
    for step in range(first, first + count):
        if step < until and (step < 4 or step % 2 == 0):
            wanted += 100
        elif step < until or (step + 1) % period == 0:
            wanted += 3
    assert bytes_sent(expected, 0, range(first, first + count)) == pytest.approx(wanted)
