"""Every command confirms a FAIL by a second set of measurements before it is reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import Exit
from harness.cases import CaseSpec, FaultScenario
from harness.features.recovery.recoverer import Recoverer
from harness.host import admission
from harness.interface.cli.main import main
from harness.measure.bench import Bench
from harness.measure.confirming import confirm
from harness.record import Reason, Row, Status, Trial, Verdict
from harness.record.store import load

RULE = """
[[rule]]
name = "planted"
case = "{case}"
metric = "{metric}"
unit = "{unit}"
{bound}
source = "requirement"
"""


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks of the host, because a busy host makes all verdicts inconclusive."""
    monkeypatch.setattr(admission, "examine", lambda on_gpus: ())


def slow_rows(case: CaseSpec) -> list[Row]:
    """Return the row of an all-reduce of 4 MiB that takes a second."""
    return [
        Row(
            nodes=case.nodes, operation="all_reduce", payload_bytes=4 << 20, transport="tcp",
            time_s=1.0, worst_s=1.0, right=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("fresh", ["slow", "quick"])
def test_a_slow_network_is_a_fail_if_a_second_set_confirms_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: str
) -> None:
    launched: list[str] = []

    def sweep(self: Bench, case: CaseSpec, *_: Any) -> list[Row]:
        launched.append(case.id)
        rows = slow_rows(case)
        if fresh == "quick" and len(launched) > 4:
            rows = [Row(**{**vars(r), "time_s": 1e-4 * (1 + len(launched) % 3)}) for r in rows]
        return [Row(**{**vars(r), "launch": len(launched)}) for r in rows]

    monkeypatch.setattr(Bench, "sweep", sweep)
    rules = tmp_path / "rules.toml"
    rules.write_text(
        RULE.format(
            case="fabric/all_reduce", metric="bus_bandwidth", unit="B/s", bound="at_least = 1e9"
        )
    )
    words = ["network", "--cpus", "2", "--sweeps", "4", "--thresholds", str(rules)]
    status = main([*words, "--results", str(tmp_path)])
    (folder,) = tmp_path.glob("runs/*/*")
    (run,) = load(folder).verdicts
    if fresh == "slow":
        assert (status, run.status) == (Exit.FAILED, Status.FAIL)
        assert len(run.pairs) == 4 and len(run.again) == 4
    else:
        assert (status, run.reason) == (Exit.INCONCLUSIVE, Reason.DISAGREE)
        assert len(launched) == 8, "as many sweeps again, and no more"


def test_a_slow_recovery_is_a_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(self: Recoverer, course: FaultScenario, rank: int) -> Trial:
        size = (course.into or course.case).world_size
        return Trial(
            case=course.case.id, fault=str(course.fault), rank=rank, blamed=rank,
            world_before=course.case.world_size, world=size, detect_s=30.0, stop_s=1.0, start_s=1.0,
            group_s=1.0, load_s=2.0, step_s=2.0, equal=True, asynchronous=course.asynchronous,
        )  # fmt: skip

    monkeypatch.setattr(Recoverer, "_trial", trial)
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE.format(case="ddp/*", metric="recovery_s", unit="s", bound="at_most = 5"))
    words = ["faults", "recover", "ddp/decoder-nano", "--cpus", "2", "--thresholds", str(rules)]
    assert main([*words, "--results", str(tmp_path)]) == Exit.FAILED
    (folder,) = tmp_path.glob("runs/*/*")
    statuses = {v.case.partition(" ")[2]: v.status for v in load(folder).verdicts}
    assert statuses["kill"] is Status.FAIL and statuses["hang"] is Status.FAIL


def test_nothing_is_measured_again_if_nothing_failed() -> None:
    def again(_: Sequence[Verdict]) -> bool:
        raise AssertionError("nothing waits for a fresh set")

    confirm(lambda: [], again)
