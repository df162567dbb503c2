"""Properties of the cost terms that must be true for all values of the unknowns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from harness.features.foresight import priors, terms
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.physics.laws import Law, amdahl, extrapolate, power, usl
from harness.features.foresight.physics.stragglers import slowest_exponential, slowest_normal
from harness.features.foresight.priors import PRIORS
from harness.features.foresight.shapes import KeptStates, Model, Shape
from harness.features.foresight.terms import UNKNOWNS, ForeseenTerm, Unknown

MODEL = Model(name="m", params=1e9, layers=24, hidden=2048)
FABRIC = Fabric(per_node=8, intra_bytes_per_s=300e9, inter_bytes_per_s=25e9)
shapes = st.builds(
    Shape,
    ranks=st.sampled_from([16, 64, 512, 4096]), tensor=st.sampled_from([1, 4, 16]),
    stages=st.sampled_from([1]), micros=st.integers(1, 16), micro_batch=st.floats(1, 32),
    kept=st.sampled_from(list(KeptStates)), model=st.just(MODEL),
)  # fmt: skip
unknowns = st.lists(
    st.floats(-2, 2), min_size=len(UNKNOWNS) + 1, max_size=len(UNKNOWNS) + 1
)  # fmt: skip


def draw(at: list[float]) -> np.ndarray:
    """Return unknowns at these numbers of spreads from their medians."""
    mean, spread = priors.vectors(PRIORS, 1, True)
    row: np.ndarray = mean + np.array(at) * np.minimum(spread, 1.0)
    return row[None, :]


def step(shape: Shape, fabric: Fabric, row: np.ndarray) -> float:
    return float(terms.step_s(terms.facts([shape], [0], fabric, 8), row)[0, 0])


@given(shape=shapes, at=unknowns, faster=st.floats(1, 64))
@example(  # On this faster network, NCCL chooses an algorithm that sends more.
    shape=Shape(
        ranks=512, tensor=1, stages=1, micros=1, micro_batch=1.0, kept=KeptStates.ALL_CUT,
        model=MODEL,
    ),
    at=[0.0, 0.0, 0.0, -1.0, *[0.0] * (len(UNKNOWNS) - 3)],
    faster=2.0,
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_more_bandwidth_never_slows_and_more_latency_never_speeds_a_step(
    shape: Shape, at: list[float], faster: float
) -> None:
    """This holds while NCCL chooses the same algorithm. It chooses by a fixed table that ignores
    the network that these unknowns describe, so it may choose a worse one.
    """
    row = draw(at)
    quick = replace(
        FABRIC, intra_bytes_per_s=FABRIC.intra_bytes_per_s * faster,
        inter_bytes_per_s=FABRIC.inter_bytes_per_s * faster,
    )  # fmt: skip
    usual, other = (terms.facts([shape], [0], fabric, 8) for fabric in (FABRIC, quick))
    for chosen, instead in (
        (usual.data_latency_s, other.data_latency_s),
        (usual.tensor_latency_s, other.tensor_latency_s),
    ):
        assume(np.allclose(chosen, instead))
    took = step(shape, FABRIC, row)
    assert step(shape, quick, row) <= took * (1 + 1e-9)
    slow = row.copy()
    slow[0, UNKNOWNS.index(Unknown.LATENCY)] += np.log(faster)
    assert step(shape, FABRIC, slow) >= took * (1 - 1e-9)


@given(shape=shapes, at=unknowns)
@settings(max_examples=40, deadline=None)
def test_terms_are_not_negative_and_add_up_to_the_step(shape: Shape, at: list[float]) -> None:
    given_ = terms.facts([shape], [0], FABRIC, 8)
    parts = terms.seconds(given_, draw(at))
    assert all(value[0, 0] >= 0 for value in parts.values())
    assert sum(v[0, 0] for v in parts.values()) == pytest.approx(step(shape, FABRIC, draw(at)))


def test_one_rank_has_no_communication_terms() -> None:
    given_ = terms.facts([Shape(ranks=1, model=MODEL)], [0], FABRIC, 1)
    parts = terms.seconds(given_, draw([0.0] * (len(UNKNOWNS) + 1)))
    for term in (
        ForeseenTerm.BYTES,
        ForeseenTerm.LATENCY,
        ForeseenTerm.TENSOR,
        ForeseenTerm.WAITING,
        ForeseenTerm.BUBBLE,
        ForeseenTerm.GROWTH,
    ):
        assert parts[term][0, 0] == pytest.approx(0, abs=1e-12), term


def test_the_latency_of_a_sharded_step_grows_with_the_ranks() -> None:
    sharded = [Shape(ranks=n, model=MODEL, kept=KeptStates.ALL_CUT) for n in (64, 4096)]
    in_nodes = [replace(s, kept=KeptStates.NODE_CUT) for s in sharded]
    small, large = (terms.data_exchange(s, FABRIC).latency_s for s in sharded)
    assert large > 20 * small
    assert terms.data_exchange(in_nodes[1], FABRIC).latency_s < large / 10


def test_the_expected_maximum_of_n_equals_tabulated_values() -> None:
    """Harter, Biometrika 1961, gives the values for 2, 8 and 64; the others were integrated
    numerically elsewhere.
    """
    known = {1: 0.0, 2: 0.5642, 8: 1.4236, 64: 2.3437, 1024: 3.2480, 10752: 3.870}
    for ranks, expected in known.items():
        assert slowest_normal(ranks) == pytest.approx(expected, abs=2e-3)
    assert slowest_exponential(4) == pytest.approx(25 / 12, rel=1e-9)


def test_fitted_laws_recover_their_coefficients() -> None:
    n = np.array([1.0, 2, 4, 8])
    for law, form, coefficients in (
        (Law.AMDAHL, amdahl, [0.03]), (Law.USL, usl, [0.02, 0.001]), (Law.POWER, power, [0.9]),
    ):  # fmt: skip
        measured = 100 * form(n, *coefficients)
        (law_found,) = extrapolate(law, [1, 2, 4, 8], list(measured), [64])
        assert law_found == pytest.approx(100 * form(np.array([64.0]), *coefficients)[0], rel=1e-3)
    assert extrapolate(Law.CONSTANT, [4, 8], [40.0, 72.0], [16])[0] == 144.0
    assert extrapolate(Law.USL, [8], [72.0], [16])[0] == 144.0, (
        "one size does not determine a curve"
    )


def test_only_trainable_parameters_are_exchanged_as_gradients() -> None:
    """If a thousandth of the parameters train, a thousandth of the gradient bytes are sent."""
    whole = Shape(ranks=64, micro_batch=4.0, model=MODEL)
    adapters = replace(whole, model=replace(MODEL, trains=1e6))
    sent, few = (terms.data_exchange(shape, FABRIC).transfer_s for shape in (whole, adapters))
    assert few < sent / 100
    plain = replace(MODEL, layers=None)
    assert plain.flops_per_token(2048) == 6e9
    assert replace(plain, trains=0.0).flops_per_token(2048) == 4e9
    cut = replace(adapters, kept=KeptStates.ALL_CUT)
    gathered = terms.data_exchange(cut, FABRIC).transfer_s
    assert (
        0.5
        < gathered / terms.data_exchange(replace(whole, kept=KeptStates.ALL_CUT), FABRIC).transfer_s
        < 0.75
    ), "frozen parameters are still gathered: two thirds of the bytes"


def test_context_parallel_ranks_exchange_keys_and_values() -> None:
    """Keys and values are gathered in both passes and their gradients scattered: 3 (c-1)/c of 4 b s
    w bytes per layer.
    """
    shape = Shape(
        ranks=8, context=8, micro_batch=2.0, seq=8192, model=replace(MODEL, hidden=8192, keys=1024)
    )
    row = draw([0.0] * (len(UNKNOWNS) + 1))
    given_ = terms.facts([shape, replace(shape, context=1)], [0, 0], FABRIC, 8)
    num_bytes = 24 * 3 * 7 / 8 * 4 * 2 * 8192 * 1024
    assert given_.tensor_transfer_s[0] == pytest.approx(num_bytes / 300e9, rel=0.25)
    assert given_.tensor_transfer_s[1] == 0
    more = terms.seconds(given_, row)[ForeseenTerm.TENSOR][0]
    assert more[0] > 0 and more[1] == 0
