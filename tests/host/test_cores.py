"""The cores of a rank are near its device, exclusive, and the same at every world size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harness.host import cores, nvml, vendor


def lay_out(sys: Path, sockets: list[tuple[range, range]], gpus: dict[str, int]) -> None:
    """Write a /sys tree of sockets with two threads per core, and of GPUs near a socket."""
    for first, second in sockets:
        for a, b in zip(first, second, strict=True):
            for cpu in (a, b):
                topology = sys / f"devices/system/cpu/cpu{cpu}/topology"
                topology.mkdir(parents=True)
                (topology / "thread_siblings_list").write_text(f"{a},{b}\n")
    for bus, socket in gpus.items():
        folder = sys / "bus/pci/devices" / bus
        folder.mkdir(parents=True)
        first, second = sockets[socket]
        text = f"{first[0]}-{first[-1]},{second[0]}-{second[-1]}\n"
        (folder / "local_cpulist").write_text(text)


@pytest.fixture
def dgx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    """Simulate 2 sockets of 56 cores with 2 threads each, and 4 GPUs near each socket."""
    buses = [
        f"0000:{number:02x}:00.0" for number in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
    ]
    sockets = [(range(56), range(112, 168)), (range(56, 112), range(168, 224))]
    lay_out(tmp_path, sockets, {bus: number // 4 for number, bus in enumerate(buses)})
    monkeypatch.setattr(cores, "SYS", tmp_path)
    return [cores.near(f"0000{bus.upper()}") for bus in buses]


def test_each_gpu_of_a_dgx_has_whole_cores_of_its_socket(dgx: list[frozenset[int]]) -> None:
    parts = cores.slices(dgx, range(224))
    assert parts[0] == (*range(14), *range(112, 126)), "14 cores with both their threads"
    assert parts[4] == (*range(56, 70), *range(168, 182)), "and of the other socket"
    assert sorted(cpu for part in parts for cpu in part) == list(range(224))


def test_one_socket_is_shared_by_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buses = {f"0000:{number:02x}:00.0": 0 for number in range(1, 5)}
    lay_out(tmp_path, [(range(16), range(16, 32))], buses)
    monkeypatch.setattr(cores, "SYS", tmp_path)
    parts = cores.slices([cores.near(f"0000{bus}") for bus in buses], range(32))
    assert parts[3] == (12, 13, 14, 15, 28, 29, 30, 31)


def test_a_mask_of_one_rank_is_not_divided_again(
    dgx: list[frozenset[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one task per rank, Slurm binds each rank to its CPUs already."""
    monkeypatch.setattr(os, "cpu_count", lambda: 224)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(14, 28)))
    assert cores.beside(1, 1, dgx, tasks=8) == tuple(range(14, 28))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(14), *range(56, 70)})
    assert cores.beside(1, 1, dgx) == (3, 4, 5), "one task for the node: its GPUs share what it has"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(224)))
    assert cores.beside(1, 1, dgx, tasks=8) == cores.beside(1, 1, dgx), "bound to nothing"


def test_too_few_cores_are_shared_by_all(dgx: list[frozenset[int]]) -> None:
    assert cores.slices(dgx, [0]) == [(0,)] * 8, "what is there, shared by all"
    assert cores.slices(dgx[:4], [0, 112, 1, 113]) == [(0, 1, 112, 113)] * 4, "a core for four"


def test_without_locality_cores_are_shared_evenly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "SYS", tmp_path)
    assert cores.near(None) == cores.near("00000000:00:00.0") == frozenset()
    assert cores.slices([frozenset()] * 2, range(1000, 1008)) == [
        (1000, 1001, 1002, 1003), (1004, 1005, 1006, 1007)
    ]  # fmt: skip


CPUS = st.frozensets(st.integers(0, 40), max_size=24)


@given(
    near=st.lists(CPUS, min_size=1, max_size=9),
    allowed=st.frozensets(st.integers(0, 40), min_size=1),
)
def test_slices_are_allowed_and_disjoint(
    near: list[frozenset[int]], allowed: frozenset[int]
) -> None:
    parts = cores.slices(near, allowed)
    assert len(parts) == len(near) and all(part and allowed.issuperset(part) for part in parts)
    for i, a in enumerate(parts):
        for b in parts[:i]:
            assert a == b or not set(a) & set(b), "neighbours share all, or nothing"


def test_cpu_ranks_take_cores_in_turn() -> None:
    assert cores.in_turn(2, 2, range(8)) == (2, 3)
    assert cores.in_turn(3, 2, range(4)) == (0, 3), "around"


def test_gpus_without_a_bus_id_have_no_near_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = vendor.Gpu(index=0, name="a", uuid="b", memory_bytes=1, mig=False, bus_id=None)
    monkeypatch.setattr(nvml, "gpus", lambda: (gpu, gpu))
    assert cores.near_gpus() == (frozenset(), frozenset())
