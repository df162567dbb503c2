"""How ranks join: which strategies communicate in pairs, and which exchange host tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.cases import Catalogue, Device, Site
from harness.launch.wire.messages import LaunchSpec, Sweep
from harness.training.rank import joining

KNOWN = Catalogue()


def site(ranks: int) -> Site:
    return Site(device=Device.CUDA, backend="nccl", nodes=(ranks,))


@pytest.mark.parametrize(
    ("name", "mesh", "pairs"),
    [
        ("pipeline/decoder-nano", "", True),
        ("pipeline/decoder-nano", "pp:2,dp:2", True),
        ("ddp/decoder-nano", "", False),
        ("fsdp/decoder-nano", "dp:2,fsdp:2", False),
        ("tensor_parallel/decoder-nano", "", False),
    ],
)
def test_only_ranks_of_a_pipeline_communicate_in_pairs(name: str, mesh: str, pairs: bool) -> None:
    case = KNOWN.normalise(site(4).case(name, mesh=mesh))
    supports = KNOWN.get("strategies", case.strategy).supports
    assert joining._in_pairs(case, supports) is pairs


@pytest.mark.parametrize("offload", [True, False])
def test_offloaded_shards_are_exchanged_on_the_host(offload: bool) -> None:
    case = KNOWN.normalise(site(2).case("fsdp/mlp-nano", knobs={"fsdp.offload": offload}))
    supports = KNOWN.get("strategies", "fsdp").supports
    assert joining._exchanges_on_host(case, supports) is offload


def test_a_sweep_of_collectives_has_no_strategy(tmp_path: Path) -> None:
    case = KNOWN.normalise(site(2).case("pipeline/decoder-nano"))
    sweep = LaunchSpec(launch="sweep", case=case, out=str(tmp_path), task=Sweep(), files={})
    assert joining._supports(sweep) is None
    trained = replace(sweep, files=KNOWN.files(case))
    assert joining._supports(trained) == KNOWN.get("strategies", "pipeline").supports


def test_the_backend_of_a_device_is_read_from_the_group(tmp_path: Path) -> None:
    assert joining.carrier(torch.device("cpu")) == ""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=0, world_size=1)
    try:
        assert joining.carrier(torch.device("cuda")) == "gloo"
        assert joining.carrier(torch.device("cpu")) == "gloo"
    finally:
        dist.destroy_process_group()
