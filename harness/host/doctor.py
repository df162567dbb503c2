"""``doctor``: what is missing or set up wrongly, and what to do. Changes nothing."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from harness.host import admission, machine, nvml
from harness.host.admission import Finding, Level


def examine() -> list[Finding]:
    """All checks of what is installed and set up; ``admission`` has those of the host itself."""
    return [check() for check in CHECKS]


def notes() -> list[str]:
    """What is not as it should be, as sentences for a record."""
    return [f"{f.check}: {f.text}" for f in examine() if f.level is not Level.OK]


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
    if not nvml.gpus():
        return Finding(check="gpus", level=Level.OK, text="none: CPU ranks over gloo")
    return Finding(check="gpus", level=Level.OK, text=machine.detect().title)


def _leftovers() -> Finding:
    """Ranks or agents of an earlier run that are still there."""
    left = " ".join(map(str, admission.Workers().pids()))
    return Finding(
        check="leftover ranks",
        level=Level.WARN if left else Level.OK,
        text=f"pids {left}" if left else "none",
        advice=f"another run is going on; if not: kill {left}" if left else "",
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    _torch, _plugin, _governor, _shared_memory, _files, _gpus, _leftovers,
)  # fmt: skip
