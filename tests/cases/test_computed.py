"""Compute settings that the device lacks, or that have no effect, are one clear error."""

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
def test_settings_that_do_not_apply_are_one_clear_error(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        Catalogue().normalise(SITE.case("ddp/decoder-nano", **fields))
    assert message in str(error.value) and "expected" in str(error.value)


def test_only_non_default_settings_are_part_of_a_case() -> None:
    plain = SITE.case("ddp/decoder-nano")
    asked = SITE.case("ddp/decoder-nano", attention="flash", checkpoint=True, checkpoint_every=2)
    assert asked.extras == "+checkpoint=True+checkpoint_every=2+attention=flash"
    assert "attention" not in plain.series and plain.hash != asked.hash


@pytest.mark.parametrize("attention", ["flash", "cudnn"])
def test_16_bit_attention_kernels_are_refused_in_fp32(attention: str) -> None:
    """In fp32 they raise "No available kernel", which would be an ERROR of a correct training run."""
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
def test_collectives_that_gloo_corrupts_on_a_shared_gpu_are_refused(name: str) -> None:
    """Gloo treats the device pointers of these collectives as host pointers."""
    site = Site(device=Device.CUDA, backend="gloo", nodes=(2,), shared_gpu=True)
    model = "moe-nano" if name == "expert_parallel" else "decoder-nano"
    with pytest.raises(SpecError, match="gloo, which --shared-gpu needs, does not"):
        KNOWN.normalise(site.case(f"{name}/{model}"))
    KNOWN.normalise(site.case("ddp/decoder-nano"))
    KNOWN.normalise(replace(site.case(f"{name}/{model}"), world_size=1, nodes=(1,)))


@pytest.mark.parametrize("name", ["accelerate", "lightning_fabric", "deepspeed"])
def test_frameworks_that_give_each_rank_a_gpu_are_refused_on_a_shared_one(name: str) -> None:
    """Two ranks that shared a GPU failed with "list index out of range" in these frameworks."""
    site = Site(device=Device.CUDA, backend="gloo", nodes=(2,), shared_gpu=True)
    with pytest.raises(SpecError, match="it gives each rank a separate GPU") as refused:
        KNOWN.normalise(site.case(f"{name}/decoder-nano"))
    assert "--set strategy=ddp" in str(refused.value)
