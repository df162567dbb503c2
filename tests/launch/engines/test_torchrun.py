"""torchrun is started with one command per node, and nodes on one machine share no device."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.cases import Catalogue, Device, Site, StandIn
from harness.cases.site import resolve
from harness.launch import causes
from harness.launch.engines.torchrun import _FAILED, WatchedLauncher, commands, device_shares
from harness.launch.wire.beats import Beats
from harness.launch.wire.messages import LaunchSpec, Timed

GPUS = Site(device=Device.CUDA, backend="nccl", nodes=(2, 4), engine="torchrun")


def test_there_is_one_command_per_node_and_nodes_may_be_unequal() -> None:
    case = GPUS.case("ddp/mlp-nano")
    spec = LaunchSpec(
        launch="x",
        case=case,
        task=Timed(steps=4, cut=1, draw=0),
        out="launch",
        files={},
    )
    first, second = commands(spec.case.nodes, spec.launch, 1234, "x", "logs")
    assert (
        "--nnodes=2" in first and "--nproc-per-node=2" in first and "--nproc-per-node=4" in second
    )
    assert any("is_host=1" in word for word in first) and any(
        "is_host=0" in word for word in second
    )


def test_settings_are_passed_to_torchrun() -> None:
    (command,) = commands((2,), "x", 1, "x", "logs", {"monitor_interval": 2, "join_timeout": 90})
    assert "--monitor-interval=2" in command and "--max-restarts=0" in command
    assert any("join_timeout=90," in word for word in command)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0,1", "2,3,4,5"]), ("7,6,5,4,3,2", ["7,6", "5,4,3,2"])],
)
def test_nodes_on_one_machine_do_not_share_devices(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    shares = device_shares(GPUS.case("ddp/mlp-nano"))
    assert [s["CUDA_VISIBLE_DEVICES"] for s in shares] == expected


def test_several_nodes_on_one_machine_are_labelled_as_emulated() -> None:
    engines = Catalogue().entries["engines"]
    two = resolve(cpus=2, nodes="2", engine="torchrun", known_engines=engines)
    single = resolve(cpus=2, engine="torchrun", known_engines=engines)
    assert two.case("ddp/mlp-nano").stand_in == {StandIn.EMULATED}
    assert single.case("ddp/mlp-nano").stand_in == frozenset()


REPORT = """
E1121 18:00:00.1 99 api.py:986] failed (exitcode: -9) local_rank: 0 (pid: 11) of binary: python
E1121 18:00:00.1 99 api.py:986] Failures:
E1121 18:00:00.1 99 api.py:986]   <NO_OTHER_FAILURES>
E1121 18:00:00.1 99 api.py:986] Root Cause (first observed failure):
E1121 18:00:00.1 99 api.py:986] [0]:
E1121 18:00:00.1 99 api.py:986]   host      : vm
E1121 18:00:00.1 99 api.py:986]   rank      : 2 (local_rank: 1)
E1121 18:00:00.1 99 api.py:986]   exitcode  : -9 (pid: 12)
"""


@pytest.mark.parametrize("prefix", [True, False])
def test_the_end_of_a_rank_is_read_from_entries_of_the_report(prefix: bool) -> None:
    text = REPORT if prefix else "\n".join(x.partition("] ")[2] for x in REPORT.splitlines())
    assert _FAILED.findall(text) == [("2", "-9")]


def test_a_node_is_lost_if_another_process_ends_its_torchrun(tmp_path: Path) -> None:
    """The processes that the engine itself ends after the loss are victims."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(1, 1), engine="torchrun")
    case = site.case("ddp/mlp-nano")
    spec = LaunchSpec(
        launch="x", case=case, task=Timed(steps=4, cut=1, draw=0), out=str(tmp_path), files={}
    )
    watched = WatchedLauncher(spec, tmp_path, Beats(tmp_path / "beats", 2, create=True))
    watched.nodes += [
        subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in case.nodes
    ]
    watched.nodes[1].kill()
    watched.nodes[1].wait()
    watched.kill()
    cause = causes.attribute(watched.ends())
    assert cause is not None and (cause.kind, cause.node, cause.rank) == ("node", 1, 1)
    assert cause.message == "node 1: its torchrun was ended by signal 9 (SIGKILL)"
