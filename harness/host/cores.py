"""CPU cores: topology, control-group limits and run-queue waits."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.host import vendor

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def quota_cpus(root: Path = ROOT, membership: Path = OWN) -> float | None:
    """CPUs that the tightest quota on the way up allows; None without one."""
    allowed = []
    for group in _groups(root, membership):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
            if quota != "max":
                allowed.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((group / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
            if quota_us > 0:
                allowed.append(
                    quota_us / int((group / "cpu.cfs_period_us").read_text(encoding="utf-8"))
                )
    return min(allowed, default=None)


def throttled_s(root: Path = ROOT, membership: Path = OWN) -> float | None:
    """Seconds for which a quota held this group, or one above it, back; None where untold."""
    seconds = []
    for group in _groups(root, membership):
        with contextlib.suppress(OSError, ValueError):
            stat = dict(
                line.split()
                for line in (group / "cpu.stat").read_text(encoding="utf-8").splitlines()
            )
            if "throttled_usec" in stat:
                seconds.append(int(stat["throttled_usec"]) / 1e6)
            elif "throttled_time" in stat:
                seconds.append(int(stat["throttled_time"]) / 1e9)
    return max(seconds, default=None)


def _groups(root: Path, membership: Path) -> Iterator[Path]:
    """The groups that this process is in, and all above them."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [root / "cpu", root / controllers]
        else:
            continue
        for top in tops:
            group = top / path.strip("/")
            while group != top:
                yield group
                group = group.parent
            yield top


TASKS = Path("/proc/self/task")
#: CPU time of threads that ended is the process's alone: more than this share, and what they waited
#: is not known.
UNSEEN = 0.02
#: The kernel adds a running thread's time up at ticks: its last part is not seen yet.
TICK_S = 0.01


class RunQueue(NamedTuple):
    """By thread: seconds on a core, and seconds ready but waiting for one."""

    cpu_s: dict[str, float]
    waited_s: dict[str, float]


def read(tasks: Path = TASKS) -> RunQueue | None:
    """All threads of this process; None where the kernel does not say (``CONFIG_SCHED_INFO``)."""
    cpu_s: dict[str, float] = {}
    waited_s: dict[str, float] = {}
    for task in tasks.glob("*/schedstat"):
        try:
            ran_ns, waited_ns, _ = task.read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue  # it has just ended
        cpu_s[task.parent.name] = int(ran_ns) / 1e9
        waited_s[task.parent.name] = int(waited_ns) / 1e9
    return RunQueue(cpu_s, waited_s) if cpu_s else None


def waited(before: RunQueue | None, after: RunQueue | None, cpu_s: float) -> float | None:
    """Seconds that threads waited in between, all of them added up.

    None where threads that are gone did a part of the ``cpu_s`` of this process: nobody knows how
    long these waited.
    """
    if before is None or after is None:
        return None
    seen_s = sum(ran - before.cpu_s.get(thread, 0.0) for thread, ran in after.cpu_s.items())
    if seen_s < (1 - UNSEEN) * cpu_s - TICK_S:
        return None
    return sum(s - before.waited_s.get(thread, 0.0) for thread, s in after.waited_s.items())


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
