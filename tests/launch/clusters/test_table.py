"""The table of engines counts executed tests and shows failures."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from . import table

JUNIT = """<testsuites><testsuite>
<testcase name="test_a_world_over_all_nodes[slurm]"><properties>
<property name="engine" value="slurm"/><property name="version" value="slurm-wlm 24.11.5"/>
</properties></testcase>
<testcase name="test_the_rank_that_broke_is_named_and_its_world_is_gone[slurm-kill-signal-2]">
<properties><property name="engine" value="slurm"/>
<property name="version" value="slurm-wlm 24.11.5"/></properties><failure/></testcase>
<testcase name="test_a_world_over_all_nodes[ray]"><skipped/></testcase>
</testsuite></testsuites>"""


def test_failed_and_skipped_tests_are_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    _, ray, slurm = table.table(table.results(path)).splitlines()
    assert ray.split() == ["ray", "-", "-", "-", "-", "-"]
    assert slurm.split() == ["slurm", "slurm-wlm", "24.11.5", "1/1", "-", "0/1", "-", "-"]


def test_every_check_of_the_suite_has_its_column() -> None:
    tree = ast.parse(Path(table.ROOT, table.SUITE).read_text())
    tests = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[:5] == "test_"}
    assert tests == set(table.CHECKS)


@pytest.mark.full
def test_the_command_prints_what_the_suite_noted() -> None:
    """The selected check is skipped, so nothing is started, but its properties are recorded."""
    words = ["-m", "tests.launch.clusters.table", "-k", "torchrun and next_world"]
    shown = subprocess.run(
        [sys.executable, *words], cwd=table.ROOT, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    _, row = shown.stdout.splitlines()
    assert row.split()[0] == "torchrun" and row.split()[-5:] == [*"-----"]
