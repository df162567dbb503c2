"""Checks that were not made are not reported as checks that hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.analysis.judging.blockers import unmeasured
from harness.cases import Device, Protocol, Site
from harness.cases.script import script_plan
from harness.record import Reason, Status

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


@pytest.mark.parametrize(
    ("arms", "usable", "status"),
    [
        (["@1", "@2"], True, Status.RECORDED),
        (["@1"], True, Status.ERROR),
        (["@1", "@2"], False, Status.ERROR),
        ([], True, Status.ERROR),
    ],
)
def test_checks_hold_only_if_every_world_was_launched(
    arms: list[str], usable: bool, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.analysis.judging.blockers._of_launch", lambda *_: None)
    monkeypatch.chdir("tests/scripts")
    plan = script_plan(["loop.py"], SITE, protocol=Protocol(steps=8, cut=2, min_blocks=0, max_blocks=0))  # fmt: skip
    launches = [SimpleNamespace(arm=arm, usable=usable or arm != "@2") for arm in arms]
    run = SimpleNamespace(out_of_time=(), complete=True, by_plan={plan.hash: launches})
    caveat = unmeasured(cast(Any, run), plan, "nothing")
    assert caveat.status is status
    assert (caveat.reason is Reason.CHECKED) is (status is Status.RECORDED)
