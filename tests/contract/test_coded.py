"""Compressors outside DDP's hook: in FSDP2's reduce-scatter, and from a later step on."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cases import Catalogue, Device, Precision, Site
from harness.record import Purpose
from harness.training.context import load
from harness.training.describe import describe

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


@pytest.mark.parametrize(
    ("world", "codec"), [pytest.param(world, "int8", marks=pytest.mark.full) for world in (2, 4)]
)
def test_reduce_scatter_sends_encoded_gradients(launch: Any, world: int, codec: str) -> None:
    gate = launch("fsdp/mlp-wide", world, knobs={"fsdp.scatter": codec})
    assert gate.cause is None and not gate.failed, (gate.cause, gate.failed)
    plain = launch("fsdp/mlp-wide", world, knobs={"fsdp.scatter": "all_to_all"})
    coded, whole = gate.described.expected, plain.described.expected
    ratio = coded.payload_bytes["all_to_all"][0] / whole.payload_bytes["all_to_all"][0]
    assert 0.25 < ratio < 0.27


@pytest.mark.parametrize(
    ("codec", "message"),
    [("topk", "needs no error feedback"), ("int9", "there is no compressor 'int9'")],
)
def test_unsuitable_compressors_of_a_reduce_scatter_are_refused(codec: str, message: str) -> None:
    known = Catalogue()
    case = known.normalise(SITE.case("fsdp/mlp-nano", knobs={"fsdp.scatter": codec}))
    assert message in describe(load(known.files(case)), case).unsupported


@pytest.mark.full
def test_steps_before_the_start_are_dense(launch: Any) -> None:
    knobs = {"compressed.start": 2}
    gate = launch("compressed:topk/mlp-wide", 2, knobs=knobs)
    assert gate.cause is None and not gate.failed, (gate.cause, gate.failed)
    timed = launch("compressed:topk/mlp-wide", 2, Purpose.TIMED, steps=12, cut=2, knobs=knobs)
    sent = {rank.sent_bytes for rank in timed.ranks}
    assert timed.cause is None
    wanted = 10 * timed.described.expected.sent_bytes[0]
    assert all(0.99 * wanted < s < 1.2 * wanted for s in sent if s is not None), (sent, wanted)


@pytest.mark.parametrize(
    ("name", "world", "fields"),
    [
        ("compressed:topk/mlp-nano", 2, dict(clip=1.0)),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ("compressed:powersgd/mlp-nano", 2, dict(precision=Precision.BF16)),
                ("compressed:powersgd/paced-small", 4, dict(precision=Precision.BF16)),
                ("compressed:topk/decoder-nano", 3, dict(precision=Precision.BF16)),
                ("compressed:powersgd/decoder-nano", 2, dict(precision=Precision.AUTOCAST)),
                ("compressed:topk/paced-small", 3, dict(precision=Precision.BF16)),
                ("compressed:dgc/mlp-nano", 2, dict(clip=1.0)),
                ("compressed:signsgd/mlp-nano", 2, dict(clip=1.0)),
                ("compressed:signsgd/paced-small", 4, {}),
            )
        ),
    ],
    ids=str,
)
def test_right_trainings_with_codecs_are_not_called_wrong(
    launch: Any, name: str, world: int, fields: Any
) -> None:
    """The cases round in bf16, are clipped to one norm, or determine the norm themselves."""
    gate = launch(name, world, **fields)
    assert gate.cause is None and not gate.failed, (gate.cause, gate.failed)
