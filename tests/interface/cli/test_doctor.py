"""``check``: facts of one machine or of many nodes, and the differences between nodes."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cases import Catalogue
from harness.host import admission, environment, machine, vendor
from harness.host.admission import Finding, Level
from harness.interface.cli.commands import check
from harness.interface.cli.main import main
from harness.launch.engine import make


def test_facts_are_text_and_contain_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("SCALEPROOF_TOKEN", "hidden")
    listed = machine.facts()
    assert listed["environment: NCCL_ALGO"] == "Ring" and "hidden" not in str(listed)
    assert listed["limit: cpus"] and listed["version: torch"] and listed["hardware: cpu"]
    assert all(isinstance(v, str) and v for v in listed.values())


class Board:
    """NVML with four devices: two pairs with NVLink, and the pairs connected through the
    processors.
    """

    NVMLError = type("NVMLError", (Exception,), {})

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        return i

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, which: int) -> int:
        return 0 if a // 2 == b // 2 and which == 2 else 3

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return 50


def test_links_between_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Board())  # type: ignore[arg-type]
    kinds = {(pair.a, pair.b): pair.joined for pair in vendor.topology()}
    assert kinds == {(0, 1): "NVLink", (2, 3): "NVLink", (0, 2): "SYS", (0, 3): "SYS",
                     (1, 2): "SYS", (1, 3): "SYS"}  # fmt: skip


def test_a_disabled_transport_is_reported_only_if_the_hardware_has_it() -> None:
    off = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
    assert len(environment.switched_off(off, infiniband=True, num_gpus=8)) == 2
    assert environment.switched_off(off, infiniband=False, num_gpus=1) == []
    assert environment.switched_off({}, infiniband=True, num_gpus=8) == []


def said(host: str, *findings: Finding, **changes: str) -> tuple[Any, Any]:
    node = SimpleNamespace(machine=SimpleNamespace(host=host))
    listed = {"hardware: host": host, "version: torch": "2.13.0", **changes}
    return node, {
        "facts": listed,
        "findings": [vars(f) | {"level": str(f.level)} for f in findings],
    }


def nodes(monkeypatch: pytest.MonkeyPatch, *answers: tuple[Any, Any]) -> None:
    """Replace the session by one whose agents give these answers."""
    worlds = SimpleNamespace(examine=lambda: list(answers))

    class Session:
        bench = SimpleNamespace(worlds=worlds)

        def __enter__(self) -> Session:
            return self

        def __exit__(self, *_: object) -> None: ...

        def ready(self) -> None: ...

    monkeypatch.setattr(check.measuring, "session", lambda *a: Session())


BAD = Finding(check="load", level=Level.BAD, text="others compute", advice="stop them")


@pytest.mark.parametrize(
    ("answers", "status", "message"),
    [
        ([said("a"), said("b"), said("c")], 0, "all facts are identical; 0 problems"),
        ([said("a"), said("b"), said("c", **{"version: torch": "2.12.0"})], 1,
         "c: 2.12.0"),
        ([said("a"), said("b", BAD)], 3, "load: others compute on b"),
        ([said("a", BAD), said("b", BAD)], 3, "on all 2 nodes"),
    ],
)  # fmt: skip
def test_outliers_and_problems_are_named_with_their_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    answers: list[Any], status: int, message: str,
) -> None:  # fmt: skip
    nodes(monkeypatch, *answers)
    code = main(["check", "--nodes", f"{len(answers)}x1", "--engine", "emulated"])
    seen = capsys.readouterr().out
    assert message in seen
    assert code == {3: 10}.get(status, status), seen


@pytest.mark.full
def test_real_agents_report_the_facts_of_their_nodes(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    if not (here := make(Catalogue().get("engines", "emulated")).probe()).available:
        pytest.skip(here.reason)
    words = ["check", "--engine", "emulated", "--nodes", "2x1", "--results", str(tmp_path)]
    assert main([*words, "--json"]) in (0, 10)
    document = json.loads(capsys.readouterr().out)
    assert len(document["nodes"]) == 2 and document["drift"] == []
    assert all(n["facts"]["version: torch"] for n in document["nodes"])
    assert {f["check"] for f in document["nodes"][0]["findings"]} >= {
        "torch",
        "clock source",
        "load",
    }


def test_one_machine_is_checked_without_an_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admission, "examine", lambda num_gpus=None: ())
    assert main(["check", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["limit: open files"] and "clock source" in str(document["checks"])
