"""Backend settings of a case override the node's environment on every rank."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from harness.cases import Catalogue
from harness.host import environment, machine
from harness.host.accelerators import Accelerators
from harness.launch import deploy
from harness.launch.deploy import Fleets
from harness.launch.engine import Where
from harness.launch.wire.messages import Address, Node
from harness.training.rank.setup import set_backend


def test_the_case_overrides_the_node_except_for_its_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # registers the variable for cleanup
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    asked = {"NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    set_backend(asked)
    seen = {name: os.environ[name] for name in asked}
    assert seen == {**asked, "GLOO_SOCKET_IFNAME": "ib0"}


def test_topology_files_are_part_of_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TOPO_FILE", "/etc/topo.xml")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/tmp/nccl.log")
    variables = environment.of_backends("nccl")
    assert "NCCL_TOPO_FILE" in variables and "NCCL_DEBUG_FILE" not in variables


def test_variables_that_only_a_node_sets_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    there = {"NCCL_ALGO": "Ring", "NCCL_NET_PLUGIN": "ofi", "NCCL_SOCKET_IFNAME": "ib0"}
    node = Node(
        agent="1", door=Address("10.0.0.1", 1), order=0, machine=machine.detect(), software={},
        environment=there, accelerators=Accelerators(build="cpu"), facts={},
    )  # fmt: skip
    worlds = SimpleNamespace(nodes=(node,), queued_s=0.0)
    monkeypatch.setattr(deploy, "open_worlds", lambda *_: worlds)
    known = Catalogue()
    notes = Fleets(known.get("engines", "hosts"), Where(), {}).notes
    assert len(notes) == 1 and "also sets NCCL_NET_PLUGIN=ofi" in notes[0]
