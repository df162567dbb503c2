"""Agents answer requests in forked children, several at once."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial

import pytest

from harness.base.documents import Json, from_doc, to_doc
from harness.cases import Catalogue, Device, Site
from harness.record import Described
from harness.training.agent import answers
from harness.training.agent.answers import describe_all, in_children

NAMES = ("ddp/mlp-nano", "fsdp/decoder-nano", "fsdp/mlp-nano", "ddp/resnet-nano")


def raises() -> Json:
    raise ValueError("no such size")


def crashes() -> Json:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def stays() -> Json:
    signal.pause()
    return None


def leaves_somebody_behind() -> Json:
    """Start a process that keeps the pipe open."""
    subprocess.Popen(["sleep", "20"], close_fds=False)
    return "said"


def test_answers_are_in_order_and_a_crash_loses_no_other_answer() -> None:
    numbers = [partial(str, number) for number in range(5)]
    said = in_children([*numbers, raises, crashes, *numbers])
    assert said[:5] == said[7:] == [{"ok": str(number)} for number in range(5)]
    assert said[5] == {"error": "ValueError: no such size"}
    assert "crashed" in said[6]["error"]


def test_a_child_that_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "DESCRIBE_S", 0.5)
    pids: list[int] = []
    begin = answers._begin

    def begun(function: object) -> object:
        child = begin(function)  # type: ignore[arg-type]
        pids.append(child.pid)
        return child

    monkeypatch.setattr(answers, "_begin", begun)
    said = in_children([stays, partial(str, 1)])
    assert "took more than" in said[0]["error"] and said[1] == {"ok": "1"}
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_process_left_behind_does_not_lose_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "DESCRIBE_S", 3.0)
    assert in_children([leaves_somebody_behind]) == [{"ok": "said"}]


def test_cases_described_together_have_the_same_descriptions_as_alone() -> None:
    catalogue, site = Catalogue(), Site(device=Device.CPU, backend="gloo", nodes=(2,))
    cases = [catalogue.normalise(site.case(name)) for name in NAMES]
    asked = [{"case": to_doc(case), "files": catalogue.files(case)} for case in cases]
    together = describe_all(asked)
    assert together == [describe_all([one])[0] for one in asked]
    assert all(from_doc(Described, answer).facts is not None for answer in together)
