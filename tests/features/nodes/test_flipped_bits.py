"""An injected flip of one bit is found and its rank named; correct ranks are never accused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.analysis.verify import verify
from harness.cases import CaseSpec, Catalogue, Device, Settings, Site
from harness.features.nodes.checking import check_bits
from harness.launch.wire.messages import InjectedBitFlip, Place
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import store

SITE = Site(device=Device.CPU, backend="gloo", nodes=(3,))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = Session(
        Catalogue(), Settings(nodes=SITE.nodes, fabric=False), tmp_path_factory.mktemp("bits"), (),
        Progress(),
    )  # fmt: skip
    with made:
        yield made
        record = made.save(complete=True)
    verified = verify(record, made.run.folder)
    assert not verified.differences, verified.differences
    assert store.load(made.run.folder).launches == record.launches


@pytest.fixture
def case() -> CaseSpec:
    return Catalogue().normalise(SITE.case("ddp/mlp-nano"))


@pytest.mark.full
def test_ranks_with_equal_bits_are_not_accused(session: Session, case: CaseSpec) -> None:
    launch = check_bits(session, case, steps=20)
    assert launch.usable and launch.compared > 1000


@pytest.mark.full
@pytest.mark.parametrize("place", list(Place))
def test_the_rank_of_a_flipped_bit_is_named(session: Session, case: CaseSpec, place: Place) -> None:
    """Flip the lowest bit of gradients and of sent, received or stored data, and a high bit of
    weights and activations.
    """
    inside = place in (Place.WEIGHT, Place.ACTIVATION)
    flip = InjectedBitFlip(place=place, rank=1, bit=22 if inside else 0, step=4, times=3)
    launch = check_bits(session, case, steps=10, flip=flip)
    assert launch.cause is None and not launch.usable
    assert all(sentence.startswith("rank 1 (") for sentence in launch.wrong), launch.wrong
