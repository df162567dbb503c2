"""Methods as their papers define them, in loops over numbers, without code of the harness."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from harness.training import transports
from harness.training.compressors import signsgd


def majority(votes: list[list[float]]) -> list[float]:
    """Bernstein et al. (ICML 2018, Algorithm 3): sign of the sum of signs, where sign(0) = 0."""

    def sign(x: float) -> int:
        return (x > 0) - (x < 0)

    return [float(sign(sum(sign(vote[i]) for vote in votes))) for i in range(len(votes[0]))]


@given(
    st.integers(1, 9).flatmap(
        lambda ranks: st.lists(
            st.lists(st.sampled_from([-2.0, -1e-30, 0.0, 3e-7, 1.0]), min_size=8, max_size=8),
            min_size=ranks, max_size=ranks,
        )
    )
)  # fmt: skip
def test_signsgd_trains_on_the_majority_of_signs(votes: list[list[float]]) -> None:
    """Run both phases as the transport does: send and count votes, then send the outcome."""
    codec = signsgd.Codec({"magnitude": 0.5}, torch.Generator())
    received = codec.decode(codec.encode(torch.tensor(votes)), 8)
    outcome = codec.decode(codec.encode(transports.mean(received)[None]), 8)[0]
    assert outcome.tolist() == pytest.approx([0.5 * x for x in majority(votes)])
