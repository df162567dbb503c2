"""Cores: which CPUs make up a physical core, which are next to a device, who runs on which.

A rank that feeds a GPU from the other socket, or shares its core with another rank, is slow for
reasons that nobody bought. So every device has its own slice of the cores next to it, and the same
slice at every world size: a baseline must not have more cores than the rungs compared with it.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from harness.host import vendor

SYS = Path("/sys")
#: Fewer CPUs are no place for a rank's own threads, its backend's and autograd's: it is not pinned.
LEAST_CPUS = 2


def near_gpus() -> tuple[frozenset[int], ...]:
    """The CPUs next to each visible GPU; empty where /sys does not say."""
    return tuple(near(gpu.bus_id) for gpu in vendor.gpus())


def near(bus_id: str | None) -> frozenset[int]:
    """The CPUs next to a PCI device, as NVML names it (``00000000:1B:00.0``)."""
    if bus_id is None:
        return frozenset()
    domain, _, rest = bus_id.lower().partition(":")
    folder = SYS / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
    try:
        return frozenset(_cpus((folder / "local_cpulist").read_text(encoding="utf-8")))
    except OSError:
        return frozenset()


def slices(near_each: Sequence[frozenset[int]], allowed: Collection[int]) -> list[tuple[int, ...]]:
    """The CPUs of each device: equal parts of the allowed cores next to it, cores kept whole.

    Devices that are next to the same cores share these. All of the allowed CPUs are shared by all
    where that cannot be told; a device whose part would be too small may use its whole home.
    """
    everywhere = frozenset(allowed)
    homes = [frozenset(near & everywhere) or everywhere for near in near_each]
    if any(a != b and a & b for a in homes for b in homes):
        homes = [everywhere] * len(homes)
    parts = []
    for number, home in enumerate(homes):
        cores = _whole(home)
        share = len(cores) // homes.count(home)
        first = homes[:number].count(home) * share
        chosen = sorted(cpu for core in cores[first : first + share] for cpu in core)
        parts.append(tuple(chosen) if len(chosen) >= LEAST_CPUS else tuple(sorted(home)))
    return parts


def beside(
    first: int, count: int, near_each: Sequence[frozenset[int]], *, tasks: int = 1
) -> tuple[int, ...]:
    """The CPUs for a rank of so many visible GPUs from number ``first`` on.

    ``near_each`` are the CPUs next to each visible GPU. Where each rank of a node is a task of its
    own (``tasks``), a scheduler binds each to its own CPUs: these are not divided again. All
    allowed ones where no GPU can be asked.
    """
    allowed = os.sched_getaffinity(0)
    bound = tasks > 1 and len(allowed) < (os.cpu_count() or 1)
    places = (
        [device % len(near_each) for device in range(first, first + count)] if near_each else []
    )
    parts = slices([near_each[place] for place in places] if bound else near_each, allowed)
    chosen = parts if bound else [parts[place] for place in places]
    return tuple(sorted({cpu for part in chosen for cpu in part} or allowed))


def in_turn(first: int, count: int, allowed: Collection[int]) -> tuple[int, ...]:
    """So many of the allowed CPUs from number ``first`` on, around if need be."""
    cores = sorted(allowed)
    return tuple(sorted({cores[i % len(cores)] for i in range(first, first + count)}))


def _whole(cpus: Collection[int]) -> list[list[int]]:
    """These CPUs by physical core, in the order of their first ones."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        file = SYS / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            core = file.read_text(encoding="utf-8").strip()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, []).append(cpu)
    return list(cores.values())


def _cpus(text: str) -> list[int]:
    """``0-2,8`` -> 0, 1, 2, 8"""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
