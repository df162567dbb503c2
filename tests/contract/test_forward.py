"""phase=forward has the losses of the reference, constant weights, and sends no gradients."""

from __future__ import annotations

from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Passes, Site
from harness.record import Purpose


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("ddp/mlp-nano", 2),
        ("fsdp/decoder-nano", 2),
        pytest.param("ddp/decoder-nano", 4, marks=pytest.mark.full),
        pytest.param("fsdp/decoder-nano", 4, marks=pytest.mark.full),
        pytest.param("single/decoder-nano", 1, marks=pytest.mark.full),
    ],
)
def test_forward_alone_has_the_losses_of_the_reference(launch: Any, name: str, world: int) -> None:
    gate = launch(name, world, phase=Passes.FORWARD)
    assert gate.cause is None and gate.failed == []
    assert sum(c.name.endswith("step1_loss") for c in gate.ranks[0].checks) == 4
    timed = launch(name, world, Purpose.TIMED, phase=Passes.FORWARD).ranks[0]
    assert timed.first_loss is not None
    train = launch(name, world, Purpose.TIMED).ranks[0]
    assert timed.first_loss == train.first_loss, "the same weights and samples"
    assert (timed.sent_bytes or 0) < (train.sent_bytes or 1)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("bug", "check"),
    [("none", ""), ("trains", "parameters_after_4"), ("once", "step1_loss"),
     ("sends", "bytes.all_reduce")],
)  # fmt: skip
def test_a_wrong_forward_is_caught(launch: Any, bug: str, check: str) -> None:
    world = launch(
        "mutant_forward/mlp-nano", 2, phase=Passes.FORWARD, knobs={"mutant_forward.bug": bug}
    )
    assert world.cause is None
    assert any(c.name.endswith(check) for c in world.failed) if check else not world.failed


def test_a_strategy_without_a_forward_phase_is_refused() -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    with pytest.raises(SpecError, match="cannot run the forward pass alone"):
        Catalogue().normalise(site.case("zero1/mlp-nano", phase=Passes.FORWARD))
