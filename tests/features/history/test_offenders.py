"""Nodes that runs reported repeatedly are distinguished from nodes that were slow once by chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.features.history.offenders import records
from harness.interface.cli.main import main
from harness.record import RunRecord
from harness.record.fabric import Suspects
from harness.record.launch import Cause


def a_run(sample: RunRecord, number: int, slow: tuple[str, ...], broken: int = -1) -> RunRecord:
    """Return a run on sixteen nodes; a launch may have failed on node ``broken``."""
    nodes = tuple(replace(sample.machine, host=f"n{i}") for i in range(16))
    first, *rest = sample.launches
    if broken >= 0:
        cause = Cause(
            rank=0, kind="signal", message="", phase="", step=1, sure=True, node=broken
        )  # fmt: skip
        first = replace(first, cause=cause, hosts=tuple(range(16)))
    return replace(
        sample,
        run=f"run-{number}",
        started_at=f"2026-01-{number + 1:02}T00:00:00+00:00",
        nodes=nodes,
        suspects=Suspects(pairs=(), nodes=slow, links=()),
        launches=(first, *rest),
    )


def test_a_node_reported_in_three_of_six_runs_is_an_offender(sample_run: RunRecord) -> None:
    named = [("n3",), (), ("n3", "n9"), (), ("n3",), ()]
    runs = [a_run(sample_run, i, slow) for i, slow in enumerate(named)]
    worst, *others = records(runs)
    assert (worst.node, worst.again, len(worst.named)) == ("n3", True, 3)
    assert worst.last == "run-4" and worst.chance < 0.001
    assert not any(record.again for record in others), "one report of n9 may be chance"
    assert len(others) == 15


def test_failed_launches_on_a_node_count_as_well(sample_run: RunRecord) -> None:
    runs = [a_run(sample_run, i, (), broken=5 if i in (0, 3) else -1) for i in range(4)]
    worst, *_ = records(runs)
    assert (worst.node, worst.again, len(worst.broke)) == ("n5", True, 2)


def test_if_every_node_is_reported_none_is_an_offender(sample_run: RunRecord) -> None:
    everyone = tuple(f"n{i}" for i in range(16))
    assert not any(
        record.again for record in records([a_run(sample_run, i, everyone) for i in range(4)])
    )


def test_the_command_prints_the_nodes_of_all_runs(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "nodes", "--results", str(tmp_path)]) == 4
    assert "contains no run" in capsys.readouterr().err
    place = tmp_path / "runs" / "m"
    place.mkdir(parents=True)
    (place / sample.name).symlink_to(sample)
    assert main(["history", "nodes", "--results", str(tmp_path)]) == 0
    assert "no node was reported in 1 runs" in capsys.readouterr().out
