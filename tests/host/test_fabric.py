"""The fabric of a machine is detected, and machines with different fabrics are not compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.compare import compare
from harness.analysis.judging.fingerprint import as_items, between, differing, fingerprint
from harness.base.errors import SpecError
from harness.cases import BoundSource, Device, Threshold
from harness.host import amd, fabric
from harness.host.fabric import LinkClass, MachineFabric, Network
from harness.host.machine import Machine
from harness.host.vendor import Gpu, Pair
from harness.record import Row, RunRecord

GPUS = tuple(
    Gpu(
        index=i, name="NVIDIA H100", uuid=f"GPU-{i}", memory_bytes=80 << 30, mig=False,
        nvlink_gb_s=450.0, pcie_gb_s=63.0,
    )
    for i in range(4)
)  # fmt: skip


def pairs(joined: str, *, switched: bool = False, peer: bool | None = True) -> list[Pair]:
    return [
        Pair(a=a, b=b, joined=joined, switched=switched, peer=peer)
        for a in range(4) for b in range(a + 1, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "link", "gb_s"),
    [
        (pairs("NVLink", switched=True), LinkClass.NVSWITCH, 450.0),
        (pairs("NVLink"), LinkClass.NVLINK, 450.0),
        (pairs("PXB"), LinkClass.PCIE_PEER, 63.0),
        (pairs("PHB"), LinkClass.PCIE_HOST, 63.0),
        (pairs("PXB", peer=False), LinkClass.PCIE_HOST, 63.0),
        (pairs("SYS"), LinkClass.PCIE_HOST, 63.0),
        (pairs("xGMI"), LinkClass.XGMI, 0.0),
        ([*pairs("NVLink")[:1], *pairs("PIX")[1:]], LinkClass.PCIE_PEER, 63.0),
        ([*pairs("NVLink")[:4], *pairs("SYS")[4:]], LinkClass.NVLINK, 450.0),
        ([*pairs("PIX")[:5], *pairs("SYS")[5:]], LinkClass.PCIE_HOST, 63.0),
        (pairs("PHB", peer=None), LinkClass.UNKNOWN, 63.0),
        ([], LinkClass.UNKNOWN, 63.0),
    ],
)
def test_the_link_that_connects_all_devices_is_named(
    found: list[Pair], link: LinkClass, gb_s: float, tmp_path: Path
) -> None:
    """Bridges between two of four GPUs leave the others on PCIe. In a cube mesh of NVLinks, each
    GPU reaches every other one over a third.
    """
    seen = fabric.detect(GPUS, found, tmp_path)
    assert (seen.link, seen.link_gb_s, seen.network) == (link, gb_s, Network.UNKNOWN)
    assert fabric.detect(GPUS[:1], [], tmp_path).link is LinkClass.NONE


def test_nccl_uses_peer_access_through_an_amd_cpu_for_two_devices(tmp_path: Path) -> None:
    """NCCL does not do this for more devices or for Intel CPUs (NCCL, ncclTopoCheckP2p)."""
    (two,) = pairs("PHB")[:1]
    epyc, xeon = "AMD EPYC 9654", "Intel(R) Xeon(R) Platinum 8480+"
    assert fabric.detect(GPUS[:2], [two], tmp_path, epyc).link is LinkClass.PCIE_PEER
    assert fabric.detect(GPUS[:2], [two], tmp_path, xeon).link is LinkClass.PCIE_HOST
    assert fabric.detect(GPUS, pairs("PHB"), tmp_path, epyc).link is LinkClass.PCIE_HOST


def test_mig_slices_have_no_known_link(tmp_path: Path) -> None:
    slices = [replace(gpu, mig=True) for gpu in GPUS]
    assert fabric.detect(slices, pairs("NVLink"), tmp_path).link is LinkClass.UNKNOWN


def port(
    sys: Path, card: str, layer: str, rate: str, state: str = "4: ACTIVE", *, hardware: bool = True
) -> None:
    at = sys / "class/infiniband" / card / "ports/1"
    at.mkdir(parents=True)
    if hardware:
        (sys / "class/infiniband" / card / "device").mkdir()
    for name, text in (("link_layer", layer), ("rate", rate), ("state", state)):
        (at / name).write_text(f"{text}\n")


def test_the_network_is_that_of_the_active_adapters(tmp_path: Path) -> None:
    ethernet = tmp_path / "class/net/eth0"
    (ethernet / "device").mkdir(parents=True)
    (ethernet / "operstate").write_text("up\n")
    (ethernet / "speed").write_text("100000\n")
    seen = fabric.detect(GPUS, pairs("NVLink"), tmp_path)
    assert (seen.network, seen.network_gbit_s) == (Network.ETHERNET, 100.0)
    for i in range(8):
        port(tmp_path, f"mlx5_{i}", "InfiniBand", "400 Gb/sec (4X NDR)")
    port(tmp_path, "mlx5_8", "InfiniBand", "400 Gb/sec (4X NDR)", "1: DOWN")
    seen = fabric.detect(GPUS, pairs("NVLink"), tmp_path)
    assert (seen.network, seen.network_gbit_s) == (Network.INFINIBAND, 3200.0)
    assert seen.name == "nvlink, infiniband of 3200 Gbit/s"


def netdev(sys: Path, name: str, megabits: int, kind: str = "1") -> Path:
    card = sys / "class/net" / name
    (card / "device").mkdir(parents=True)
    for file, text in (("operstate", "up"), ("speed", str(megabits)), ("type", kind)):
        (card / file).write_text(f"{text}\n")
    return card


def seen_on(sys: Path) -> tuple[Network, float]:
    found = fabric.detect(GPUS, pairs("NVLink"), sys)
    return found.network, found.network_gbit_s


def test_adapters_that_nccl_does_not_use_are_not_counted(tmp_path: Path) -> None:
    """Software RDMA, iWARP, IP over InfiniBand, virtual functions and slower adapters: ignored."""
    netdev(tmp_path, "ib0", 400_000, kind="32")
    port(tmp_path, "rxe0", "Ethernet", "100 Gb/sec (4X EDR)", hardware=False)
    port(tmp_path, "iwarp0", "Ethernet", "100 Gb/sec (4X EDR)")
    (tmp_path / "class/infiniband/iwarp0/node_type").write_text("4: RNIC\n")
    assert seen_on(tmp_path) == (Network.UNKNOWN, 0.0)
    port(tmp_path, "mlx5_9", "InfiniBand", "400 Gb/sec (4X NDR)", "5: ACTIVE_DEFER")
    netdev(tmp_path, "eth0", 25_000)
    (netdev(tmp_path, "eth0_0", 25_000) / "phys_port_name").write_text("pf0vf3\n")
    for folder in ("device/physfn/net/eth0", "master/device"):
        (netdev(tmp_path, folder[:4], 25_000) / folder).mkdir(parents=True)
    assert seen_on(tmp_path) == (Network.ETHERNET, 25.0)
    for i in range(8):
        port(tmp_path, f"mlx5_{i}", "InfiniBand", "400 Gb/sec (4X NDR)")
    port(tmp_path, "mlx5_8", "InfiniBand", "200 Gb/sec (4X HDR)")
    assert seen_on(tmp_path) == (Network.INFINIBAND, 3200.0)
    for i in range(8):
        port(tmp_path, f"roce_{i}", "Ethernet", "800 Gb/sec (4X XDR)")
    assert seen_on(tmp_path) == (Network.ROCE, 6400.0), "the storage's InfiniBand is not it"


def test_roce_and_efa(tmp_path: Path) -> None:
    port(tmp_path / "a", "mlx5_0", "Ethernet", "200 Gb/sec (4X HDR)")
    assert fabric.detect(GPUS, [], tmp_path / "a").network is Network.ROCE
    port(tmp_path / "b", "rdmap0", "Unspecified", "100 Gb/sec")
    (tmp_path / "drivers/efa").mkdir(parents=True)
    device = tmp_path / "b/class/infiniband/rdmap0/device"
    (device / "driver").symlink_to(tmp_path / "drivers/efa")
    assert fabric.detect(GPUS, [], tmp_path / "b").network is Network.EFA


Twin = Callable[[MachineFabric | None], RunRecord]


@pytest.fixture
def twin(sample_run: RunRecord) -> Twin:
    """Return a function that changes the sample's run to two GPUs with a given fabric."""

    def made(joined: MachineFabric | None) -> RunRecord:
        gpus = replace(sample_run.machine, gpu="NVIDIA H100", num_gpus=2, fabric=joined)
        settings = replace(sample_run.settings, device=Device.CUDA, nodes=(2,))
        return replace(sample_run, machine=gpus, settings=settings)

    return made


FAST = MachineFabric(
    link=LinkClass.NVSWITCH, link_gb_s=450.0, network=Network.INFINIBAND, network_gbit_s=3200
)
SLOW = replace(FAST, network=Network.ETHERNET, network_gbit_s=100)


def test_machines_that_differ_only_in_the_fabric_are_not_compared(twin: Twin) -> None:
    fast, slow, old = twin(FAST), twin(SLOW), twin(None)
    assert fast.machine.hardware_class != slow.machine.hardware_class
    with pytest.raises(SpecError, match="hardware: "):
        compare(fast, slow, "throughput")
    assert compare(fast, fast, "throughput").rows
    with pytest.raises(SpecError, match="fabric: unknown"):
        compare(old, old, "throughput")
    with pytest.raises(SpecError, match="fabric: .* unknown"):
        compare(fast, old, "throughput")


def test_only_links_that_connect_the_ranks_are_compared(twin: Twin) -> None:
    """The network only counts for several nodes; the rates of links count, too."""
    half, other = replace(FAST, network_gbit_s=1600), replace(FAST, link_gb_s=200.0)
    assert between(fingerprint(twin(FAST)), fingerprint(twin(half))) == []
    assert between(fingerprint(twin(FAST)), fingerprint(twin(other))) == [
        "fabric: nvswitch of 450 GB/s | nvswitch of 200 GB/s"
    ]

    def over_two(joined: MachineFabric) -> RunRecord:
        run = twin(joined)
        return replace(run, settings=replace(run.settings, nodes=(2, 2)))

    (differs,) = between(fingerprint(over_two(FAST)), fingerprint(over_two(half)))
    assert "3200 Gbit/s" in differs and "1600 Gbit/s" in differs
    unknown = fingerprint(over_two(replace(FAST, network=Network.UNKNOWN)))
    assert between(unknown, unknown), "an unknown network is comparable with nothing"


def test_bounds_and_history_distinguish_fabrics(twin: Twin) -> None:
    fast, slow, old = twin(FAST), twin(SLOW), twin(None)
    wanted = as_items(fingerprint(fast))
    assert differing(wanted, fast) == []
    assert any("hardware" in field for field in differing(wanted, slow))
    assert any("fabric" in field for field in differing(as_items(fingerprint(old)), old))
    nights = [fingerprint(run) for run in (fast, slow)]  # a nightly run has its run's fingerprint
    assert [line.partition(":")[0] for line in between(*nights)] == ["hardware"]


def test_the_transport_of_nccl_is_in_the_fingerprint(twin: Twin) -> None:
    """A transport that falls back on the same hardware is no regression of the software."""

    def swept(transport: str) -> RunRecord:
        row = Row(nodes=(2,), operation="all_reduce", payload_bytes=8, transport=transport)
        return replace(twin(FAST), fabric=(row,))

    direct, through_host = swept("nccl P2P/CUMEM"), swept("nccl SHM/direct")
    assert between(fingerprint(direct), fingerprint(through_host)) == [
        "transport: nccl P2P/CUMEM | nccl SHM/direct"
    ]
    unmeasured = fingerprint(twin(FAST))
    assert between(fingerprint(direct), unmeasured) == [], "one of them was not swept"


def test_a_threshold_applies_to_its_fabric_only(twin: Twin) -> None:
    rule = Threshold(
        name="r", case="*", metric="efficiency", source=BoundSource.REQUIREMENT, at_least=0.9,
        fabric=("nvswitch",),
    )  # fmt: skip
    network = replace(rule, fabric=("infiniband",), gbit_s=1600.0)

    def machine(joined: MachineFabric | None) -> Machine:
        return twin(joined).machine

    assert rule.holds_on(machine(FAST), 1) and rule.holds_on(machine(SLOW), 1)
    assert not rule.holds_on(machine(None), 1) and not rule.holds_on(machine(FAST), 2)
    assert network.holds_on(machine(FAST), 2) and not network.holds_on(machine(SLOW), 2)
    slower = replace(FAST, network_gbit_s=400)
    assert not network.holds_on(machine(slower), 2), "200 Gbit/s for each of two GPUs"


def kfd(root: Path, place: int, properties: str, links: dict[int, int]) -> None:
    node = root / f"sys/class/kfd/kfd/topology/nodes/{place}"
    (node / "io_links").mkdir(parents=True)
    (node / "properties").write_text(properties)
    (node / "name").write_text("gfx942\n")
    for number, (to, kind) in enumerate(links.items()):
        (node / f"io_links/{number}").mkdir()
        (node / f"io_links/{number}/properties").write_text(f"type {kind}\nnode_to {to}\n")


def test_amd_devices_are_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated tree has the layout of amdkfd, with the CPU as node 0."""
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    kfd(tmp_path, 0, "simd_count 0\ncpu_cores_count 64\n", {1: 2, 2: 2})
    for place, other in ((1, 2), (2, 1)):
        text = f"simd_count 1216\nunique_id {place}\ndrm_render_minor {127 + place}\n"
        kfd(tmp_path, place, text, {0: 2, other: 11})
        card = tmp_path / f"sys/class/drm/renderD{127 + place}/device"
        card.mkdir(parents=True)
        (card / "product_name").write_text("AMD Instinct MI300X\n")
        (card / "mem_info_vram_total").write_text(f"{192 << 30}\n")
    found = amd.gpus(tmp_path)
    assert [gpu.name for gpu in found] == ["AMD Instinct MI300X"] * 2
    assert {gpu.memory_bytes for gpu in found} == {192 << 30}
    (pair,) = amd.topology(tmp_path)
    assert fabric.detect(found, [pair], tmp_path).link is LinkClass.XGMI
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,1")
    assert len(amd.gpus(tmp_path)) == 2
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert [gpu.uuid for gpu in amd.gpus(tmp_path)] == ["GPU-0000000000000002"]
    assert amd.gpus(tmp_path / "elsewhere") == ()
