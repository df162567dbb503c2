"""The fleet of agents, tested without torch by stub agents that only introduce themselves."""

from __future__ import annotations

import contextlib
import selectors
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from harness.base.documents import to_doc
from harness.base.errors import LaunchError
from harness.cases import Device, Site
from harness.host import machine
from harness.host.accelerators import Accelerators
from harness.launch import agents
from harness.launch.agents import AgentLink, fit
from harness.launch.engine import State, Where
from harness.launch.fleet import Fleet, seats
from harness.launch.wire.channel import Channel, Listener, dial, make_token, read_token
from harness.launch.wire.messages import Address, LaunchSpec, Node, Sweep


class Stub:
    """A job that only has a state."""

    def __init__(self, state: State = State.RUNNING) -> None:
        self.state, self.stopped = state, False

    def prepare(self, spec: LaunchSpec) -> None:
        """Do nothing."""

    def channels(self) -> Mapping[int, Channel]:
        return {}

    def poll(self) -> tuple[State, str]:
        return self.state, "job 7"

    def stop(self) -> None:
        self.stopped = True


def node(order: int, host: str = "10.0.0.1", **gpus: Any) -> Node:
    return Node(
        agent=f"{order}", door=Address(host, 1), order=order,
        machine=replace(machine.detect(), num_cores=8),
        software=machine.software(), environment={},
        accelerators=Accelerators(**{"build": "cpu", **gpus}), facts={},
    )  # fmt: skip


def joining(listener: Listener, token: Path, nodes: list[Node]) -> list[threading.Thread]:
    """Start agents that all connect at once and stay."""

    def join(one: Node) -> None:
        channel = dial(f"127.0.0.1:{listener.port}", read_token(token), 30)
        with contextlib.closing(channel):
            channel.send({"hello": to_doc(one)})
            while channel.receive() is not None:
                pass

    threads = [threading.Thread(target=join, args=(one,), daemon=True) for one in nodes]
    for thread in threads:
        thread.start()
    return threads


@pytest.fixture
def token(tmp_path: Path) -> Path:
    make_token(tmp_path / "token")
    return tmp_path / "token"


def test_a_hundred_nodes_join_at_once_in_their_order(token: Path) -> None:
    """Slow accepting would make agents give up, and their order must not follow addresses."""
    many = 100
    listener, job = Listener(token), Stub()
    where = Where(nodes=(1,) * many, settings={"one_machine": True})
    fleet = Fleet(lambda: (job, listener), where)
    nodes = [node(i, f"10.0.0.{many - i}") for i in range(many)]
    threads = joining(listener, token, nodes[::-1])
    assert [n.order for n in fleet.nodes] == list(range(many))
    assert listener.num_refused == 0
    fleet.close()
    for thread in threads:
        thread.join(5)
    assert job.stopped and not any(t.is_alive() for t in threads)


def test_each_agent_is_registered_at_most_twice_while_all_join(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registering all agents again in every round would make the cost quadratic."""
    many = 30
    listened: list[object] = []

    class Counting(selectors.DefaultSelector):
        def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
            listened.extend([data] if isinstance(data, AgentLink) else [])
            return super().register(fileobj, events, data)

    monkeypatch.setattr(agents.selectors, "DefaultSelector", Counting)
    monkeypatch.setattr("harness.launch.fleet.TICK_S", 0.01)
    monkeypatch.setattr("harness.launch.fleet.PAUSES", 0.0)
    listener = Listener(token)
    where = Where(nodes=(1,) * many, settings={"one_machine": True})
    fleet = Fleet(lambda: (Stub(), listener), where)
    started = 0

    def one_after_another(ready: int, _: int, __: str) -> None:
        nonlocal started
        if ready == started < many:
            joining(listener, token, [node(started, f"10.0.0.{started}")])
            started += 1

    fleet.ready(one_after_another)
    assert len(fleet.nodes) == many
    assert many <= len(listened) <= 2 * many
    fleet.close()


def test_a_node_that_never_comes_is_named(token: Path) -> None:
    listener, job = Listener(token), Stub()
    settings = {"one_machine": True, "join_s": 3.0}
    fleet = Fleet(lambda: (job, listener), Where(nodes=(1, 1, 1), settings=settings))
    threads = joining(listener, token, [node(0), node(2)])
    with pytest.raises(LaunchError, match=r"2 of 3 agents are ready \(missing: nodes 1\): job 7"):
        fleet.ready()
    assert job.stopped, "nothing is left of the others"
    for thread in threads:
        thread.join(5)


def test_closing_a_fleet_ends_its_running_world(token: Path) -> None:
    """Otherwise the caller of that launch would wait forever."""
    listener, job = Listener(token), Stub()
    fleet = Fleet(lambda: (job, listener), Where(settings={"one_machine": True}))
    threads = joining(listener, token, [node(0)])
    with pytest.raises(LaunchError, match="released while a world was running"):
        fleet.launch(_world(), lambda step: fleet.close())
    assert job.stopped
    for thread in threads:
        thread.join(5)


def test_an_answer_that_has_arrived_at_the_deadline_counts(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent is late only if no answer has arrived, even if the wait has no time left."""
    listener, job = Listener(token), Stub()
    fleet = Fleet(lambda: (job, listener), Where(settings={"one_machine": True}))
    threads = joining(listener, token, [node(0)])
    fleet.ready()
    (link,) = fleet._links
    monkeypatch.setattr(fleet._ear, "receive", lambda links: iter([(link, {"described": []}, b"")]))
    assert fleet._ask([link], {"describe": []}, -1.0) == [{"described": []}]
    monkeypatch.setattr(fleet._ear, "receive", lambda links: iter([]))
    with pytest.raises(LaunchError, match="does not answer: describe"):
        fleet._ask([link], {"describe": []}, -1.0)
    for thread in threads:
        thread.join(5)


def test_ctrl_c_in_a_queue_leaves_no_job(token: Path) -> None:
    job = Stub(State.PENDING)
    fleet = Fleet(lambda: (job, Listener(token)), Where(nodes=(1,)))

    def watch(here: int, wanted: int, says: str) -> None:
        assert (here, wanted, says) == (0, 1, "job 7")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet.ready(watch)
    assert job.stopped


def test_nodes_with_a_loopback_address_are_refused(token: Path) -> None:
    listener, job = Listener(token), Stub()
    fleet = Fleet(lambda: (job, listener), Where(nodes=(1, 1)))
    other = replace(node(1), machine=replace(machine.detect(), host="another"))
    threads = joining(listener, token, [node(0, "127.0.1.1"), other])
    with pytest.raises(LaunchError, match=r"127\.0\.1\.1, which other nodes cannot reach"):
        fleet.ready()
    for thread in threads:
        thread.join(5)


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ({"build": "cpu"}, "node 1 .*torch .* is built without CUDA"),
        ({"build": "cuda 13.0", "names": ("NVIDIA H100",)}, "torch 1, but 2 are needed"),
    ],
)
def test_a_node_with_too_few_gpus_is_refused(token: Path, gpus: dict[str, Any], says: str) -> None:
    listener, where = Listener(token), Where(nodes=(2, 2), device=Device.CUDA)
    fleet = Fleet(lambda: (Stub(), listener), where)
    fine = {"build": "cuda 13.0", "names": ("NVIDIA H100",) * 2}
    first, second = node(0, "10.0.0.1", **fine), node(1, "10.0.0.2", **gpus)
    second = replace(second, machine=replace(second.machine, host="another"))
    joining(listener, token, [first, second])
    with pytest.raises(LaunchError, match=says):
        fleet.ready()
    fleet.close()


def test_a_node_with_fewer_cores_than_gpu_ranks_is_refused() -> None:
    """A scheduler gives such nodes if only tasks are requested."""
    about = node(0, build="cuda 13.0", names=("NVIDIA H100",) * 8)
    poor = replace(about, machine=replace(about.machine, num_cores=1))
    where = Where(nodes=(8,), device=Device.CUDA)
    fit([AgentLink(node=0, channel=None, about=about)], where)
    with pytest.raises(LaunchError, match="1 CPU cores for 8 ranks"):
        fit([AgentLink(node=0, channel=None, about=poor)], where)


def _links(nodes: int, *left_out: int) -> list[AgentLink]:
    links = [AgentLink(node=n, channel=None) for n in range(nodes)]
    for n in left_out:
        links[n].lost, links[n].left_out = "its agent is gone", True
    return links


def _world(*hosts: int, nodes: int = 1) -> LaunchSpec:
    site = Site(device=Device.CPU, backend="gloo", nodes=(1,) * (len(hosts) or nodes))
    return LaunchSpec(
        launch="w", case=site.case("ddp/mlp-nano"), out="", task=Sweep(), files={}, hosts=hosts
    )


def test_other_nodes_replace_a_node_that_is_left_out() -> None:
    """Concurrent worlds still use different nodes."""
    specs = [_world(0, 2), _world(1)]
    assert seats(specs, _links(4)) == [(0, 2), (1,)]
    assert seats(specs, _links(4, 2)) == [(0, 3), (1,)]
    assert seats([_world(nodes=2)], _links(3, 0)) == [(2, 1)]


def test_a_world_that_needs_a_lost_node_is_refused_and_smaller_ones_go_on() -> None:
    links = _links(3, 1)
    with pytest.raises(LaunchError, match="node 1 is lost .*no other node is free"):
        seats([_world(nodes=3)], links)
    assert seats([_world(nodes=2)], links) == [(0, 2)]


@given(st.data())
def test_replacement_nodes_are_available_and_distinct(data: st.DataObject) -> None:
    num = data.draw(st.integers(2, 12))
    out = data.draw(st.sets(st.integers(0, num - 1), max_size=num - 1))
    order = data.draw(st.permutations(range(num)))
    size = data.draw(st.integers(1, num - len(out)))
    (placed,) = seats([_world(*order[:size])], _links(num, *out))
    assert len({*placed}) == size and not {*placed} & out
