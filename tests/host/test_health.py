"""Faults of the GPUs in use are reported by NVML, each in one sentence with advice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.host import admission, nvml, vendor
from harness.host.admission import Level
from harness.host.vendor import Gpu, Health, Pair

WELL = Gpu(
    index=0, name="NVIDIA H100", uuid="GPU-0", memory_bytes=80 << 30, mig=False, used_bytes=0,
    max_clock_mhz=1980, bus_id="00000000:10:00.0",
    health=Health(
        uncorrected_errors=0, pcie_width=(16, 16), pcie_generation=(5, 5), persistent=True
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "level", "says"),
    [
        ({"uncorrected_errors": 3}, Level.BAD, "3 uncorrected memory errors"),
        ({"remapped_rows": "failed"}, Level.BAD, "could not be remapped"),
        ({"remapped_rows": "pending"}, Level.WARN, "the next reset will remap"),
        ({"links_down": (4, 5)}, Level.BAD, "NVLink 4, 5 is down"),
        ({"pcie_width": (8, 16)}, Level.BAD, "8 of 16 PCIe lanes"),
        ({"persistent": False}, Level.WARN, "persistence mode is off"),
    ],
)
def test_each_fault_is_one_sentence_about_its_device(
    fault: dict[str, Any], level: Level, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "poll", lambda: [])
    monkeypatch.setattr(admission, "kernel_log", lambda: "")
    broken = dataclasses.replace(WELL, index=1, health=dataclasses.replace(WELL.health, **fault))
    found = [f for f in admission.gpus([WELL, broken]) if f.device is not None]
    assert [(f.device, f.level) for f in found] == [(1, level)]
    assert says in found[0].text and found[0].advice


def test_an_idle_link_may_have_a_lower_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PCIe generation of an idle link may be lower, but not its number of lanes."""
    monkeypatch.setattr(nvml, "poll", lambda: [])
    monkeypatch.setattr(admission, "kernel_log", lambda: "")
    resting = dataclasses.replace(WELL.health, pcie_generation=(1, 5))
    found = admission.gpus([dataclasses.replace(WELL, health=resting)])
    assert not [f for f in found if f.device is not None]


def test_xids_are_those_of_the_devices_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "poll", lambda: [])
    log = (
        "6,1,2,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, GPU has fallen off the bus.\n"
        "6,2,3,-;NVRM: Xid (PCI:0000:20:00): 13, pid=2, Graphics Exception\n"
    )
    monkeypatch.setattr(admission, "kernel_log", lambda: log)
    (found,) = [f for f in admission.gpus([WELL]) if f.device is not None]
    assert "Xid 79" in found.text and "13" not in found.text


def test_processes_on_unused_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--gpus 4`` on a host of eight, processes on the other four do not matter."""
    devices = tuple(
        dataclasses.replace(WELL, index=i, uuid=f"GPU-{i}", pids=(4242,) if i >= 4 else ())
        for i in range(8)
    )
    monkeypatch.setattr(nvml, "gpus", lambda: devices)
    monkeypatch.setattr(nvml, "poll", lambda: [])
    monkeypatch.setattr(admission, "load", lambda: admission.memory())
    levels = {n: {f.level for f in admission.examine(n) if f.device is not None} for n in (4, 8)}
    assert levels == {4: set(), 8: {Level.BAD}}


@pytest.mark.parametrize(
    ("name", "joined", "lost"),
    [
        ("NVIDIA H100 80GB HBM3", "PIX", True),
        ("NVIDIA H100 80GB HBM3", "NVLink", False),
        ("NVIDIA H100 PCIe", "PIX", False),
        ("AMD Instinct MI300X OAM", "PCIe", True),
    ],
)
def test_devices_without_their_fast_links_are_unfit(
    name: str, joined: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would be judged by the low thresholds of PCIe, and pass."""
    pair = Pair(a=0, b=1, joined=joined, switched=True, peer=True)
    monkeypatch.setattr(nvml, "poll", lambda: [])
    monkeypatch.setattr(admission, "kernel_log", lambda: "")
    monkeypatch.setattr(vendor, "topology", lambda: (pair,))
    two = [dataclasses.replace(WELL, index=i, name=name) for i in range(2)]
    unfit = [f.text for f in admission.gpus(two) if f.level is Level.BAD]
    assert bool(unfit) == lost and all("instead of" in text for text in unfit), unfit
