"""The topology of a machine, read from a simulated /sys and simulated links of GPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.host import nvml, topology, vendor
from harness.interface.report.topology import lines

KINDS = {(0, 1): "NVLink", (0, 2): "SYS", (1, 2): "SYS"}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Write two sockets of two cores of two threads, a cache each, an adapter on the second."""
    files = {}
    for cpu in range(8):
        at = f"devices/system/cpu/cpu{cpu}"
        socket = cpu // 4
        files[f"{at}/topology/physical_package_id"] = str(socket)
        files[f"{at}/topology/core_id"] = str(cpu % 4 // 2)
        files[f"{at}/cache/index0/level"] = "1"
        files[f"{at}/cache/index0/type"] = "Data"
        files[f"{at}/cache/index0/shared_cpu_list"] = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        files[f"{at}/cache/index3/level"] = "3"
        files[f"{at}/cache/index3/type"] = "Unified"
        files[f"{at}/cache/index3/size"] = "32768K"
        files[f"{at}/cache/index3/shared_cpu_list"] = f"{socket * 4}-{socket * 4 + 3}"
    for node in range(2):
        files[f"devices/system/node/node{node}/cpulist"] = f"{node * 4}-{node * 4 + 3}"
        files[f"devices/system/node/node{node}/distance"] = "10 21" if node == 0 else "21 10"
    files["class/net/eth0/device/numa_node"] = "1"
    for index in range(3):
        files[f"bus/pci/devices/0000:0{index}:00.0/numa_node"] = str(index // 2)
    write(tmp_path, files)
    return tmp_path


def test_cores_caches_and_distances(two_sockets: Path) -> None:
    facts = dict(topology.facts(two_sockets))
    assert facts["topology: cpus"] == "2 sockets, 4 cores, 8 threads"
    assert facts["topology: shared caches"] == "L3 32768K: cpus 0-3; L3 32768K: cpus 4-7"
    assert facts["topology: numa nodes"] == "0: cpus 0-3, 1: cpus 4-7"
    assert facts["topology: numa distances"] == "10 21; 21 10"
    assert facts["topology: card eth0"] == "numa 1"


def test_the_matrix_of_gpus(two_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(index=i, bus_id=f"00000000:0{i}:00.0") for i in range(3)]
    monkeypatch.setattr(nvml, "gpus", lambda: gpus)
    monkeypatch.setattr(
        nvml, "topology", lambda: [vendor.Pair(a=a, b=b, joined=k) for (a, b), k in KINDS.items()]
    )
    facts = dict(topology.facts(two_sockets))
    assert facts["topology: gpu 0"] == "X NVLink SYS, numa 0"
    assert facts["topology: gpu 2"] == "SYS SYS X, numa 1"
    run = SimpleNamespace(facts={"a": facts, "b": dict(facts), "c": {"version: torch": "2"}})
    shown = lines(run, 80)  # type: ignore[arg-type]
    assert "2 nodes as a" in shown[0]
    rows = [line.split() for line in shown]
    assert ["gpu", "numa", "0", "1", "2"] in rows or ["gpu", "0", "1", "2", "numa"] in rows
    assert ["1", "NVLink", "X", "SYS", "0"] in rows
    assert max(map(len, shown)) <= 80


def test_without_a_driver_the_reason_is_recorded(two_sockets: Path) -> None:
    if vendor.gpus():
        pytest.skip("there are GPUs here")
    assert dict(topology.facts(two_sockets))["topology: gpus"].startswith("none: no GPU driver")


def test_this_machine_has_a_topology() -> None:
    assert "core" in dict(topology.facts())["topology: cpus"]
