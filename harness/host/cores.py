"""CPU cores: which ones a rank may use, quotas, and the time that threads wait for a core."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.host import vendor

#: The mount point of control groups.
ROOT = Path("/sys/fs/cgroup")
#: The file that lists the control groups of this process.
OWN = Path("/proc/self/cgroup")


def quota_cpus(root: Path = ROOT, membership: Path = OWN) -> float | None:
    """Return the number of CPUs that quotas allow this process, or None without a quota.

    It is the smallest quota of the process's control group and of all groups above it.
    """
    allowed = []
    for group in groups("cpu", root, membership):
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
    """Return the seconds for which a quota throttled this group or one above it.

    Return None if the kernel does not report this time.
    """
    seconds = []
    for group in groups("cpu", root, membership):
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


def groups(controller: str, root: Path = ROOT, membership: Path = OWN) -> Iterator[Path]:
    """Yield the groups of this process for a controller, such as ``cpu``, and all groups above."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops = [root, root / "unified"]
        elif controller in controllers.split(","):
            tops = [root / controller, root / controllers]
        else:
            continue
        for top in tops:
            group = top / path.strip("/")
            while group != top:
                yield group
                group = group.parent
            yield top


#: The folder with a subfolder for each thread of this process.
TASKS = Path("/proc/self/task")
#: The largest fraction of the process's CPU time that ended threads may have used. The kernel keeps
#: the CPU time of ended threads, but not the time for which they waited.
UNSEEN = 0.02
#: Seconds of CPU time that may be missing, because the kernel updates the time of a running thread
#: only at its ticks.
TICK_S = 0.01


class RunQueue(NamedTuple):
    """The seconds for which each thread ran on a core, and for which it waited for a core."""

    cpu_s: dict[str, float]
    waited_s: dict[str, float]


def read(tasks: Path = TASKS) -> RunQueue | None:
    """Return the times of all threads of this process.

    Return None if the kernel does not report these times (``CONFIG_SCHED_INFO``).
    """
    cpu_s: dict[str, float] = {}
    waited_s: dict[str, float] = {}
    for task in tasks.glob("*/schedstat"):
        try:
            ran_ns, waited_ns, _ = task.read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue  # the thread has just ended
        cpu_s[task.parent.name] = int(ran_ns) / 1e9
        waited_s[task.parent.name] = int(waited_ns) / 1e9
    return RunQueue(cpu_s, waited_s) if cpu_s else None


def of_groups(groups: Collection[int]) -> float:
    """Return the CPU seconds that the processes of these process groups have used so far."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended
        if int(fields[2]) in groups:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def waited(before: RunQueue | None, after: RunQueue | None, cpu_s: float) -> float | None:
    """Return the seconds that all threads together waited between two readings.

    ``cpu_s`` is the CPU time of this process between the readings. Return None if ended threads
    used more than ``UNSEEN`` of this time, because their waiting time is unknown.
    """
    if before is None or after is None:
        return None
    seen_s = sum(ran - before.cpu_s.get(thread, 0.0) for thread, ran in after.cpu_s.items())
    if seen_s < (1 - UNSEEN) * cpu_s - TICK_S:
        return None
    return sum(s - before.waited_s.get(thread, 0.0) for thread, s in after.waited_s.items())


SYS = Path("/sys")
#: Minimum number of CPUs to which a rank is pinned. Its main thread and the threads of autograd and
#: the backend need that many.
LEAST_CPUS = 2


def near_gpus() -> tuple[frozenset[int], ...]:
    """Return the local CPUs of each visible GPU; an entry is empty if /sys does not report them."""
    return tuple(near(gpu.bus_id) for gpu in vendor.gpus())


def near(bus_id: str | None) -> frozenset[int]:
    """Return the local CPUs of a PCI device. NVML reports its address as ``00000000:1B:00.0``."""
    if bus_id is None:
        return frozenset()
    domain, _, rest = bus_id.lower().partition(":")
    folder = SYS / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
    try:
        return frozenset(_cpus((folder / "local_cpulist").read_text(encoding="utf-8")))
    except OSError:
        return frozenset()


def slices(near_each: Sequence[frozenset[int]], allowed: Collection[int]) -> list[tuple[int, ...]]:
    """Divide the allowed CPUs among devices, and return the CPUs of each device.

    ``near_each`` has the local CPUs of each device. Devices with the same local cores get equal
    parts of these cores, and no core is split. If the sets of cores overlap without being equal,
    all allowed CPUs are divided among all devices. A device whose part would be smaller than
    ``LEAST_CPUS`` may use all its local CPUs.
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
    """Return the CPUs for a rank that uses ``count`` visible GPUs from number ``first`` on.

    ``near_each`` has the local CPUs of each visible GPU; if it is empty, the rank may use all
    allowed CPUs. ``tasks`` is the number of separate tasks that start the ranks of the node. If
    there are several tasks, a scheduler may have bound each of them to certain CPUs. The CPUs of a
    task are then not divided again.
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
    """Return ``count`` of the allowed CPUs, in order of their numbers.

    The first one is the allowed CPU at index ``first``. After the last one, the first one follows.
    """
    cores = sorted(allowed)
    return tuple(sorted({cores[i % len(cores)] for i in range(first, first + count)}))


def _whole(cpus: Collection[int]) -> list[list[int]]:
    """Group CPUs by physical core, in the order of the first CPU of each core."""
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
    """Return the CPUs in a list of the kernel: ``0-2,8`` gives 0, 1, 2, 8."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
