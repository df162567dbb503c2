"""The link rate that a sweep's bus bandwidth is compared with is that of the links in use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.judging.series import link_bps
from harness.host import devices
from harness.host.fabric import LinkClass, MachineFabric, Network

H100 = devices.parse("2x8xh100").machine
MI300X = devices.parse("8xmi300x").machine


def joined(link: LinkClass, gb_s: float = 0.0, gbit_s: float = 3200.0) -> MachineFabric:
    return MachineFabric(
        link=link, link_gb_s=gb_s, network=Network.INFINIBAND, network_gbit_s=gbit_s
    )


@pytest.mark.parametrize(
    ("fabric", "nodes", "gb_s"),
    [
        (joined(LinkClass.NVSWITCH), (8,), 450),
        (joined(LinkClass.NVSWITCH), (2,), 450),
        (joined(LinkClass.PCIE_HOST, 64), (8,), 64),
        (joined(LinkClass.NVLINK, 300), (8,), 300),
        (joined(LinkClass.NVLINK, 350), (2,), 50),
        (joined(LinkClass.UNKNOWN), (8,), None),
        (joined(LinkClass.PCIE_PEER, 16), (8,), 16),
        (joined(LinkClass.NVSWITCH), (8, 8), 400),
        (joined(LinkClass.NVSWITCH, 0, 1600), (8, 8), 200),
        (joined(LinkClass.NVSWITCH, 0, 6400), (8, 8), 400),
        (joined(LinkClass.NVSWITCH), (1, 1), 50),
        (joined(LinkClass.PCIE_HOST, 64), (8, 8), None),
        (joined(LinkClass.NVSWITCH, 0, 0), (8, 8), None),
        (None, (8,), None),
    ],
)
def test_the_link_rate_is_that_of_the_slowest_link(
    fabric: MachineFabric | None, nodes: tuple[int, ...], gb_s: float | None
) -> None:
    """A data sheet's rate counts only for the links that the sheet describes."""
    found = link_bps(replace(H100, fabric=fabric), nodes)
    assert found == (None if gb_s is None else pytest.approx(1e9 * gb_s))


@pytest.mark.parametrize(("num_gpus", "gb_s"), [(8, 448), (4, 192), (2, 64)])
def test_a_mesh_has_one_link_per_pair_of_gpus(num_gpus: int, gb_s: float) -> None:
    """Eight MI300X have one link of 64 GB/s to each other GPU, even if some GPUs are hidden."""
    machine = replace(MI300X, num_gpus=num_gpus, fabric=joined(LinkClass.XGMI))
    assert link_bps(machine, (num_gpus,)) == pytest.approx(1e9 * gb_s)
