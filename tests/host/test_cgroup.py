"""Limits of control groups, read from simulated trees of cgroup v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.host import cores


def planted(root: Path, files: dict[str, str], message: str) -> tuple[Path, Path]:
    """Write a tree of groups and a /proc/self/cgroup file, and return both paths."""
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (root / "own").write_text(message)
    return root / "cgroup", root / "own"


V1 = "12:cpu,cpuacct:/kubepods/pod1\n3:memory:/kubepods/pod1\n"


@pytest.mark.parametrize(
    ("files", "message", "cpus"),
    [
        ({"a/b/cpu.max": "200000 100000"}, "0::/a/b\n", 2.0),
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 1.5),
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b\n", 1.0),
        ({"a/b/cpu.max": "max 100000"}, "0::/a/b\n", None),
        ({"elsewhere/cpu.max": "100000 100000"}, "0::/a/b\n", None),
        (
            {
                "cpu/kubepods/pod1/cpu.cfs_quota_us": "50000",
                "cpu/kubepods/pod1/cpu.cfs_period_us": "100000",
            },
            V1,
            0.5,
        ),
        (
            {
                "cpu,cpuacct/kubepods/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/kubepods/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": "-1",
            },
            V1,
            3.0,
        ),
        ({"a/b/cpu.max": "no numbers"}, "0::/a/b\n", None),
    ],
    ids=["message", "above", "tightest", "none", "another's", "v1", "v1 above", "damaged"],
)
def test_the_tightest_quota_of_all_ancestors_counts(
    tmp_path: Path, files: dict[str, str], message: str, cpus: float | None
) -> None:
    assert cores.quota_cpus(*planted(tmp_path, files, message)) == cpus


@pytest.mark.parametrize(
    ("files", "message", "seconds"),
    [
        ({"a/cpu.stat": "usage_usec 9\nthrottled_usec 2500000"}, "0::/a\n", 2.5),
        (
            {"a/cpu.stat": "throttled_usec 1000000", "a/b/cpu.stat": "throttled_usec 4000000"},
            "0::/a/b\n",
            4.0,
        ),
        ({"cpu/kubepods/pod1/cpu.stat": "nr_periods 1\nthrottled_time 500000000"}, V1, 0.5),
        ({"a/cpu.stat": "usage_usec 9"}, "0::/a\n", None),
    ],
)
def test_the_throttled_time_is_read(
    tmp_path: Path, files: dict[str, str], message: str, seconds: float | None
) -> None:
    assert cores.throttled_s(*planted(tmp_path, files, message)) == seconds


def test_without_control_groups_nothing_is_known(tmp_path: Path) -> None:
    assert cores.quota_cpus(tmp_path, tmp_path / "none") is None
    assert cores.throttled_s(tmp_path, tmp_path / "none") is None
