"""How a case is computed: what its device has not, or what was not asked for, is one clear error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.cases import Attention, Catalogue, Device, Precision, Site

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(checkpoint=True, checkpoint_every=0), "checkpoint_every = 0"),
        (dict(checkpoint_every=2), "checkpoint_every applies only to checkpointing"),
        (dict(selective=True), "selective applies only to checkpointing"),
        (dict(offload=True), "offload is a setting of CUDA devices"),
        (dict(tf32=True), "tf32 is a setting of CUDA devices"),
        (dict(tf32=True, precision="bf16"), "tf32 has no effect with precision=bf16"),
        (dict(cudnn_benchmark=True), "cudnn_benchmark is a setting of CUDA devices"),
        (dict(priority_stream=True), "priority_stream is a setting of CUDA devices"),
        (dict(attention="cudnn"), "attention=cudnn is a kernel of CUDA devices"),
        (
            dict(stepping="fused", optimizer="lamb"),
            "stepping=fused is not available with optimizer=lamb",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        Catalogue().normalise(SITE.case("ddp/decoder-nano", **fields))
    assert message in str(error.value) and "expected" in str(error.value)


def test_a_setting_is_part_of_a_case_and_its_default_is_not() -> None:
    plain = SITE.case("ddp/decoder-nano")
    asked = SITE.case("ddp/decoder-nano", attention="flash", checkpoint=True, checkpoint_every=2)
    assert asked.extras == "+checkpoint=True+checkpoint_every=2+attention=flash"
    assert "attention" not in plain.series and plain.hash != asked.hash


@pytest.mark.parametrize("attention", ["flash", "cudnn"])
def test_16_bit_kernels_of_gpus_are_refused_in_fp32(attention: str) -> None:
    """They raise "No available kernel" there, which would be an ERROR of a healthy training."""
    site = Site(device=Device.CUDA, backend="nccl", nodes=(1,))
    case = site.case("single/decoder-nano", attention=Attention(attention))
    with pytest.raises(SpecError, match="in 16 bits on GPUs") as refused:
        KNOWN.normalise(case)
    assert "--set precision=autocast" in str(refused.value)
    KNOWN.normalise(replace(case, precision=Precision.AUTOCAST))


@pytest.mark.parametrize(
    "name",
    [
        "fsdp",
        "pipeline",
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "actor_learner",
    ],  # fmt: skip
)
def test_what_gloo_would_corrupt_on_a_shared_gpu_is_refused(name: str) -> None:
    """It takes device pointers of these collectives for the host's."""
    site = Site(device=Device.CUDA, backend="gloo", nodes=(2,), shared_gpu=True)
    model = "moe-nano" if name == "expert_parallel" else "decoder-nano"
    with pytest.raises(SpecError, match="with --shared-gpu: gloo cannot carry"):
        KNOWN.normalise(site.case(f"{name}/{model}"))
    KNOWN.normalise(site.case("ddp/decoder-nano"))
    KNOWN.normalise(replace(site.case(f"{name}/{model}"), world_size=1, nodes=(1,)))


@pytest.mark.parametrize("name", ["accelerate", "lightning_fabric", "deepspeed"])
def test_a_framework_that_takes_a_gpu_by_its_ranks_number_shares_none(name: str) -> None:
    """On a GPU that two ranks shared they ended with "list index out of range"."""
    site = Site(device=Device.CUDA, backend="gloo", nodes=(2,), shared_gpu=True)
    with pytest.raises(SpecError, match="it gives each rank a separate GPU") as refused:
        KNOWN.normalise(site.case(f"{name}/decoder-nano"))
    assert "--set strategy=ddp" in str(refused.value)
