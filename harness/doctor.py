"""``doctor``: what on this machine would spoil a measurement, and what to do. Changes nothing."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from harness import machine, nvml


class Level(StrEnum):
    """OK; WARN spoils numbers; BAD stops launches."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's answer, with what to do when it is not ok."""

    check: str
    level: Level
    text: str
    advice: str = ""


def examine() -> list[Finding]:
    """All checks in order."""
    return [check() for check in CHECKS]


def _torch() -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding(
            check="torch",
            level=Level.BAD,
            text="not installed",
            advice="pip install -c constraints.txt torch",
        )
    new = tuple(int(x) for x in version.split("+")[0].split(".")[:2]) >= (2, 11)
    return Finding(
        check="torch",
        level=Level.OK if new else Level.BAD,
        text=version,
        advice="" if new else "torch >= 2.11 is needed",
    )


def _plugin() -> Finding:
    names = {p.name for p in metadata.entry_points(group="pytest11")}
    good = "scaleproof" in names
    return Finding(
        check="pytest plugin",
        level=Level.OK if good else Level.BAD,
        text="installed" if good else "not installed",
        advice="" if good else "pip install -e .",
    )


def _load() -> Finding:
    cores = machine.physical_cores()
    per_core = os.getloadavg()[0] / cores
    busy = per_core > 0.5
    return Finding(
        check="load",
        level=Level.WARN if busy else Level.OK,
        text=f"{per_core:.2f} per core over the last minute, {cores} cores",
        advice="something else is running: wait for it, or expect wide intervals" if busy else "",
    )


def _governor() -> Finding:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not path.is_file():
        return Finding(
            check="cpu governor", level=Level.OK, text="n/a (virtual machine or no cpufreq)"
        )
    governor = path.read_text().strip()
    good = governor == "performance"
    return Finding(
        check="cpu governor",
        level=Level.OK if good else Level.WARN,
        text=governor,
        advice="" if good else "cpupower frequency-set -g performance",
    )


def _shared_memory() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Finding(
            check="shared memory",
            level=Level.WARN,
            text="/dev/shm is missing",
            advice="mount it: NCCL and data loaders need it",
        )
    good = free > 64 << 20
    return Finding(
        check="shared memory",
        level=Level.OK if good else Level.WARN,
        text=f"{free >> 20} MiB free in /dev/shm",
        advice="" if good else "enlarge /dev/shm (containers: --shm-size)",
    )


def _files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft >= 1024
    return Finding(
        check="open files",
        level=Level.OK if good else Level.WARN,
        text=f"limit {soft}",
        advice="" if good else "ulimit -n 4096",
    )


def _gpus() -> Finding:
    found = nvml.gpus()
    if not found:
        return Finding(check="gpus", level=Level.OK, text="none: CPU ranks over gloo")
    names = sorted({g.name for g in found})
    readings = nvml.summarise([nvml.poll()])
    slowed = [f"{r.index}: {', '.join(r.throttle)}" for r in readings if r.throttle]
    if len(names) > 1:
        return Finding(
            check="gpus",
            level=Level.WARN,
            text=f"unequal: {' + '.join(names)}",
            advice="use baseline sum_of_devices",
        )
    if slowed:
        return Finding(
            check="gpus",
            level=Level.WARN,
            text=f"{len(found)}x {names[0]}, slowed: {'; '.join(slowed)}",
            advice="nvidia-smi -q -d PERFORMANCE",
        )
    return Finding(
        check="gpus", level=Level.OK, text=f"{len(found)}x {names[0]}, driver {nvml.driver()}"
    )


def _leftovers() -> Finding:
    """Ranks or agents of an earlier run that are still there."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"harness.worker" in command and int(process.name) != os.getpid():
            left.append(process.name)
    return Finding(
        check="leftover ranks",
        level=Level.WARN if left else Level.OK,
        text=f"pids {', '.join(left)}" if left else "none",
        advice=f"another run is going on; if not: kill {' '.join(left)}" if left else "",
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    _torch, _plugin, _load, _governor, _shared_memory, _files, _gpus, _leftovers,
)  # fmt: skip
