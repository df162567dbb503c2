"""What a case says of its backend holds on every rank, whatever the node's own environment says."""

from __future__ import annotations

import os

import pytest

from harness import machine
from harness.worker.rank import set_backend


def test_the_case_wins_but_not_over_a_nodes_own_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    asked = {"NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    set_backend(asked)
    seen = {name: os.environ[name] for name in asked}
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    assert seen == {**asked, "GLOO_SOCKET_IFNAME": "ib0"}


def test_files_that_say_how_to_route_are_part_of_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TOPO_FILE", "/etc/topo.xml")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/tmp/nccl.log")
    found = machine.backend_environment("nccl")
    assert "NCCL_TOPO_FILE" in found and "NCCL_DEBUG_FILE" not in found
