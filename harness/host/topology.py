"""Describe how cores, memory, GPUs and network cards are connected, from /sys and NVML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.host import vendor

#: The entry for the GPU itself in its line of the matrix, as in ``nvidia-smi topo -m``.
ITSELF = "X"


def facts(sys: Path = Path("/sys")) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each fact about the topology; the text is empty if it is unknown.

    Every name starts with ``topology:``.
    """
    yield "topology: cpus", _cpus(sys)
    yield "topology: shared caches", _caches(sys)
    nodes = sorted(
        (sys / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])
    )
    yield (
        "topology: numa nodes",
        ", ".join(f"{node.name[4:]}: cpus {_read(node / 'cpulist')}" for node in nodes),
    )
    if len(nodes) > 1:
        yield "topology: numa distances", "; ".join(_read(node / "distance") for node in nodes)
    yield from _gpus(sys)
    for card in sorted((sys / "class/net").glob("*")):
        near = _read(card / "device/numa_node")
        if near and near != "-1":
            yield f"topology: card {card.name}", f"numa {near}"
    for card in sorted((sys / "class/infiniband").glob("*")):
        near = _read(card / "device/numa_node")
        if near:
            yield f"topology: card {card.name}", f"numa {near}"


def _read(path: Path) -> str:
    """Return the content of a file, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _cpus(sys: Path) -> str:
    """Return the numbers of CPUs as a text: ``2 sockets, 32 cores, 64 threads``."""
    places = [
        (_read(cpu / "topology/physical_package_id"), _read(cpu / "topology/core_id"))
        for cpu in (sys / "devices/system/cpu").glob("cpu[0-9]*")
        if (cpu / "topology/core_id").exists()
    ]
    if not places:
        return ""
    counts = {
        "socket": len({socket for socket, _ in places}),
        "core": len(set(places)),
        "thread": len(places),
    }
    return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items())


def _caches(sys: Path) -> str:
    """Return the last-level caches and their CPUs as text, such as ``L3 32768K: cpus 0-7; ..``."""
    caches: dict[str, tuple[int, str]] = {}
    for index in (sys / "devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level = _read(index / "level")
        if level.isdigit() and _read(index / "type") != "Instruction":
            shared = _read(index / "shared_cpu_list")
            caches[shared] = max(caches.get(shared, (0, "")), (int(level), _read(index / "size")))
    highest = max((level for level, _ in caches.values()), default=0)
    last = {cpus: size for cpus, (level, size) in caches.items() if level == highest}
    by_place = sorted(last.items(), key=lambda item: int(item[0].replace(",", "-").split("-")[0]))
    return "; ".join(f"L{highest} {size}: cpus {cpus}" for cpus, size in by_place)


def _gpus(sys: Path) -> Iterator[tuple[str, str]]:
    """Yield each GPU's line of the matrix that ``nvidia-smi topo -m`` prints, and its NUMA node."""
    gpus = vendor.gpus()
    if not gpus:
        yield "topology: gpus", "none: no GPU driver answers on this machine"
        return
    joined = {frozenset((p.a, p.b)): p.joined for p in vendor.topology() if p.joined}
    for gpu in gpus:
        links = [
            ITSELF
            if other.index == gpu.index
            else joined.get(frozenset((gpu.index, other.index)), "?")
            for other in gpus
        ]
        near = ""
        if gpu.bus_id:
            near = _read(sys / f"bus/pci/devices/{gpu.bus_id[-12:].lower()}/numa_node")
        numa = f", numa {near}" if near and near != "-1" else ""
        yield f"topology: gpu {gpu.index}", f"{' '.join(links)}{numa}"
