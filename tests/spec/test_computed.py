"""How a case is computed: what its device has not, or what was not asked for, is one clear error."""

from __future__ import annotations

from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.spec import Catalogue, Device, Site

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (dict(checkpoint=True, checkpoint_every=0), "checkpoint_every = 0"),
        (dict(checkpoint_every=2), "checkpoint_every says how to checkpoint"),
        (dict(selective=True), "selective says how to checkpoint"),
        (dict(offload=True), "offload is a setting of CUDA devices"),
        (dict(tf32=True), "tf32 is a setting of CUDA devices"),
        (dict(tf32=True, precision="bf16"), "tf32 with precision=bf16"),
        (dict(cudnn_benchmark=True), "cudnn_benchmark is a setting of CUDA devices"),
        (dict(priority_stream=True), "priority_stream is a setting of CUDA devices"),
        (dict(attention="cudnn"), "attention=cudnn is a kernel of CUDA devices"),
        (dict(stepping="fused", optimizer="lamb"), "stepping=fused with optimizer=lamb"),
    ],
)
def test_what_cannot_be_is_one_clear_error(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as error:
        Catalogue().normalise(SITE.case("ddp/decoder-nano", **fields))
    assert told in str(error.value) and "expected" in str(error.value)


def test_a_setting_is_part_of_a_case_and_its_default_is_not() -> None:
    plain = SITE.case("ddp/decoder-nano")
    asked = SITE.case("ddp/decoder-nano", attention="flash", checkpoint=True, checkpoint_every=2)
    assert asked.extras == "+checkpoint=True+checkpoint_every=2+attention=flash"
    assert "attention" not in plain.series and plain.hash != asked.hash
