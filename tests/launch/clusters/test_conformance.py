"""Every available engine passes the same launches."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.analysis import packing
from harness.base.documents import from_doc
from harness.cases import Catalogue, Device, Site
from harness.launch import causes
from harness.launch.deploy import open_worlds
from harness.launch.engine import Ended, Where, make
from harness.launch.engines.torchrun import Torchrun
from harness.launch.fleet import Fleet
from harness.launch.wire.evidence import lives
from harness.launch.wire.messages import Deadlines, LaunchSpec, Timed
from harness.record import Cause, RankRecord

from . import hyperqueue_cluster, monarch_hosts, ray_cluster, slurm

FAULTS = Path(__file__).parents[2] / "faults" / "strategies"
QUICK = Deadlines(start_s=60, first_step_s=30, step_s=8, collective_s=5)
ENGINES = (
    "local",
    "torchrun",
    "hosts",
    pytest.param("emulated", marks=pytest.mark.full),
    "slurm",
    pytest.param("slurm-rank", marks=pytest.mark.full),
    pytest.param("ray", marks=pytest.mark.full),  # starting its cluster takes half a minute
    pytest.param("hyperqueue", marks=pytest.mark.full),
    pytest.param("monarch", marks=pytest.mark.full),
    *(
        pytest.param(f"kubernetes-{kind}", marks=pytest.mark.full)
        for kind in ("job", "jobset", "trainjob")
    ),
)
#: The option PR_SET_CHILD_SUBREAPER of ``prctl``, which adopts orphans of child processes.
SUBREAPER = 36
#: A variable in the environment of every process that these tests start.
OURS = f"TESTED_BY_SCALEPROOF={uuid.uuid4().hex}"
os.environ.update([OURS.split("=")])
SSH = """#!/bin/bash
# Stands in for ssh: the last argument is the line for the other machine's shell.
exec bash -c "${@: -1}"
"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An engine with its nodes."""

    name: str
    worlds: Fleet
    nodes: tuple[int, ...]
    known: Catalogue
    folder: Path
    version: str

    def launch(self, case_name: str, **knobs: object) -> tuple[Ended, Cause | None, Path]:
        """Launch one world over all nodes."""
        spec = self.spec(case_name, self.nodes, **knobs)
        ended = self.worlds.launch(spec, lambda step: None)
        return ended, causes.attribute(ended.ranks, ended.unreachable), Path(spec.out)

    def spec(self, case_name: str, nodes: tuple[int, ...], **knobs: object) -> LaunchSpec:
        """Return the specification of a world over the first nodes."""
        site = Site(device=Device.CPU, backend="gloo", nodes=nodes, emulated=len(nodes) > 1)
        case = self.known.normalise(site.case(case_name, knobs=knobs))
        out = self.folder / f"launch{time.monotonic_ns()}"
        out.mkdir(parents=True)
        return LaunchSpec(
            launch=out.name, case=case, task=Timed(steps=8, cut=2, draw=1),
            out=str(out), files=self.known.files(case), deadlines=QUICK,
        )  # fmt: skip


@contextlib.contextmanager
def component(name: str, folder: Path) -> Iterator[dict[str, object]]:
    """Start what an engine needs and yield its settings; skip the test if this is impossible."""
    if name == "hosts":
        (folder / "ssh").write_text(SSH)
        (folder / "ssh").chmod(stat.S_IRWXU)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            yield {"nodes": ["127.0.0.1", "localhost"]}
    elif name.startswith("slurm"):
        if why := slurm.missing():
            pytest.skip(why)
        with pytest.MonkeyPatch.context() as patch, slurm.cluster() as env:
            for key, value in env.items():
                patch.setenv(key, value)
            yield {"tasks": "rank" if name == "slurm-rank" else "node"}
    elif name == "ray":
        pytest.importorskip("ray", reason="ray is not installed (pip install 'scaleproof[ray]')")
        with ray_cluster.cluster() as address:
            yield {"address": address}
    elif name.startswith("kubernetes"):  # a simulated API server
        for needed in ("kubernetes", "kubernetes_validate", "kubeflow_trainer_api"):
            pytest.importorskip(needed, reason="pip install 'scaleproof[test]'")
        from . import controllers

        with controllers.cluster() as here:
            about = {"host": here.host, "kind": name.partition("-")[2], "python": sys.executable}
            yield {"image": "registry/scaleproof:1", **about}
    elif name == "hyperqueue":
        pytest.importorskip(name, reason="pip install 'scaleproof[hyperqueue]'")
        with hyperqueue_cluster.cluster(folder) as server:
            yield {"server_dir": server}
    elif name == "monarch":
        pytest.importorskip(name, reason="pip install 'scaleproof[monarch]'")
        with monarch_hosts.hosts(folder) as workers:
            yield {"workers": workers}
    else:
        yield {}


@pytest.fixture(scope="module", params=ENGINES)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    name = str(request.param)
    ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)  # undo the setting of an earlier engine
    folder = tmp_path_factory.mktemp(name)
    known = Catalogue([FAULTS])
    entry = known.get("engines", name.split("-")[0])
    nodes = (1, 2) if entry.engine.multi_node else (3,)
    nodes = (1, 1, 1) if name == "kubernetes-trainjob" else nodes  # its nodes are equal
    with component(name, folder) as stand:
        settings = dict(entry.head.get("SETTINGS", {}))
        here_alone = {"one_machine": True, "listen": "127.0.0.1"}
        settings |= {k: v for k, v in here_alone.items() if k in settings} | stand
        where = Where(nodes=nodes, folder=folder / "engine", settings=settings)
        if not (here := make(entry).probe()).available:
            pytest.skip(here.reason)
        agents, namespaces = there()
        worlds = open_worlds(entry, where)
        yield Bench(
            name=name, worlds=worlds, nodes=nodes, known=known, folder=folder, version=here.version
        )  # fmt: skip
        worlds.close()
        left, lent = there()
        assert not left - agents, f"agents are left: {left - agents}"
        assert not lent - namespaces, f"networks are left: {lent - namespaces}"


@pytest.fixture(autouse=True)
def about(bench: Bench, record_property: Callable[[str, object], None]) -> None:
    """Record engine and version for ``python -m tests.launch.clusters.table``."""
    record_property("engine", bench.name)
    record_property("version", bench.version)


def there() -> tuple[set[int], set[str]]:
    """Return the agents that these tests started, and their network namespaces."""
    agents, namespaces = set(), set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if OURS.encode() not in (path / "environ").read_bytes().split(b"\0"):
                continue
            if b"harness.training.agent.agent" in (path / "cmdline").read_bytes().split(b"\0"):
                agents.add(int(path.name))
            namespaces.add(str((path / "ns" / "net").readlink()))
    return agents, namespaces


def test_a_world_over_all_nodes(bench: Bench) -> None:
    ended, cause, out = bench.launch("ddp/mlp-nano")
    assert cause is None, cause
    ranks = [
        from_doc(RankRecord, json.loads((out / f"rank{r}.json").read_text())) for r in range(3)
    ]
    per_node = [(node, i) for node, count in enumerate(bench.nodes) for i in range(count)]
    assert [(r.node, r.local_rank) for r in ranks] == per_node
    assert len({r.pid for r in ranks}) == 3
    assert all((out / f"rank{r}.npz").stat().st_size for r in range(3))
    assert len({e.order for e in ended.ranks}) == 3


@pytest.mark.few(2)
def test_worlds_at_once_have_places_of_their_own_and_break_alone(bench: Bench) -> None:
    """Three worlds of one rank, two of them on one node, do not affect each other."""
    if not bench.known.get("engines", bench.name.split("-")[0]).engine.packs:
        pytest.skip("it launches one world at a time")
    knobs = {"faulty_ddp.kind": "kill", "faulty_ddp.rank": 0}
    broken = bench.spec("faulty_ddp/mlp-nano", (1,), **knobs)
    specs = [bench.spec("ddp/mlp-nano", (1,)), bench.spec("ddp/mlp-nano", (1,)), broken]
    seats = packing.seats([spec.case for spec in specs], bench.nodes) or []
    placed = [
        replace(spec, hosts=seat.hosts, devices=seat.devices)
        for spec, seat in zip(specs, seats, strict=True)
    ]
    ended = bench.worlds.launch_together(placed, lambda step: None)
    causes_named = [causes.attribute(e.ranks, e.unreachable) for e in ended]
    assert causes_named[:2] == [None, None]
    assert causes_named[2] is not None and (causes_named[2].kind, causes_named[2].rank) == (
        "signal",
        0,
    )
    assert causes_named[2].node == seats[2].hosts[0]
    paths = [Path(spec.out) / "rank0.json" for spec in specs[:2]]
    ranks = [from_doc(RankRecord, json.loads(path.read_text())) for path in paths]
    assert [r.node for r in ranks] == [seat.hosts[0] for seat in seats[:2]]
    alone = len(os.sched_getaffinity(0)) < 2
    assert alone or ranks[0].affinity != ranks[1].affinity, "each its own core"


FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("kind", "message", "rank"),
    [
        ("kill", "signal", 2),
        pytest.param("stop", "hang", 0, marks=FULL),  # tests/faults has hangs on several nodes
        pytest.param("kill", "signal", 0, marks=FULL),
        pytest.param("stop", "hang", 2, marks=FULL),
        *(
            pytest.param(kind, message, rank, marks=FULL)
            for kind, message in (("raise", "exception"), ("exit", "exit"), ("skip", "collective"))
            for rank in (0, 2)
        ),
    ],
)
def test_the_rank_that_broke_is_named_and_its_world_is_gone(
    bench: Bench, kind: str, message: str, rank: int
) -> None:
    knobs = {"faulty_ddp.kind": kind, "faulty_ddp.rank": rank}
    ended, cause, out = bench.launch("faulty_ddp/mlp-nano", **knobs)
    assert cause is not None
    assert (cause.rank, cause.kind, cause.sure) == (rank, message, True), cause
    assert cause.node == (0 if rank == 0 else len(bench.nodes) - 1)
    assert not any(lives(e.pid) for e in ended.ranks if e.pid)
    pids = {f.name: int(f.read_text()) for f in out.glob("rank*.pid")}
    assert not [name for name, pid in pids.items() if lives(pid)], "ranks or what they had started"
    assert (out / f"rank{rank}.log").is_file() or kind in ("kill", "exit", "stop")


def test_the_next_world_is_well(bench: Bench) -> None:
    if isinstance(bench.worlds, Torchrun):
        pytest.skip("torchrun starts every world anew: there is nothing that could be left")
    assert bench.launch("ddp/mlp-nano")[1] is None


def test_a_node_whose_agent_dies_is_named_and_the_next_world_gets_a_new_one(bench: Bench) -> None:
    worlds = bench.worlds
    if isinstance(worlds, Torchrun):
        pytest.skip("no agents: torchrun starts every world by itself")
    before = [node.agent for node in worlds.nodes]
    last = worlds.nodes[-1]
    pid = int(last.agent.split("-")[0])
    site = Site(device=Device.CPU, backend="gloo", nodes=bench.nodes)
    knobs = {"paced.step_ms": 200.0}
    case = bench.known.normalise(site.case("ddp/paced-small", knobs=knobs))
    out = bench.folder / "killed"
    out.mkdir()
    spec = LaunchSpec(
        launch="killed", case=case, task=Timed(steps=40, cut=2, draw=1),
        out=str(out), files=bench.known.files(case), deadlines=QUICK,
    )  # fmt: skip
    killed: list[float] = []

    def kill(step: int) -> None:
        if step > 2 and not killed:
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

    ended = worlds.launch(spec, kill)
    cause = causes.attribute(ended.ranks, ended.unreachable)
    assert cause is not None and (cause.kind, cause.sure) == ("node", True)
    assert cause.node == len(bench.nodes) - 1
    assert "agent is gone" in cause.message
    assert bench.launch("ddp/mlp-nano")[1] is None
    if bench.name in (
        "hosts",
        "emulated",
        "slurm",
        "hyperqueue",
        "monarch",
    ):  # the others start all agents anew
        after = [node.agent for node in worlds.nodes]
        assert after[:-1] == before[:-1] and after[-1] != before[-1], "the others stay"
        assert "was started again" in worlds.notes[-1]
