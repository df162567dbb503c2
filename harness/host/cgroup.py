"""Limits of this process's control groups: how many CPUs it may use, how long it was held back.

Both layouts: version 2 (one tree) and version 1 (a tree for each controller).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

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
