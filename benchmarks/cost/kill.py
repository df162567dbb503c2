"""Measure the cost of a lost node in a run of 64 nodes, in node-seconds.

All nodes wait until the lost node is replaced. Agents are simulated in one separate process, with
64 ranks each. They join, send a heartbeat once a second, and end their ranks on request. Some
seconds into a launch one of them dies or falls silent. Its replacement joins after the time that an
agent needs to import torch. The measured times are those of the launching program: detecting the
loss, ending the world, testing which nodes can reach each other, joining, and the next launch.

    python -m benchmarks.cost.kill [--nodes 64] [--ranks 64] [--launched-s 5] [--import-s 8]
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.cost.fleet import Stubs
from harness.base.documents import from_doc, to_doc
from harness.cases import Device, Site
from harness.host import machine
from harness.host.accelerators import Accelerators
from harness.launch.engine import Job, Where
from harness.launch.fleet import Fleet
from harness.launch.wire.channel import Channel, Listener, dial, make_token, read_token
from harness.launch.wire.messages import Address, LaunchSpec, Node, RankEnd, Share, Sweep

#: How a node is lost, and what happens to its connection.
WAYS = {"dies": "its connection closes", "falls silent": "10 s without a word"}


@dataclass
class Stub:
    """A simulated agent: the launch that it last received, and whether it still sends messages."""

    channel: Channel
    share: Share | None = None
    launch: str = ""
    silent: bool = False

    def hear(self, message: Mapping[str, Any]) -> None:
        """Answer a message like an agent whose ranks run until they are ended."""
        if "launch" in message:
            self.share = from_doc(Share, message["share"])
            self.launch = message["launch"]
            if self.share.first == 0:
                store = {"of": self.launch, "store": to_doc(Address("127.0.0.1", 1))}
                self.channel.send(store)
        elif "reach" in message:
            self.channel.send({"reached": [True] * len(message["reach"])})
        elif "kill" in message and self.share is not None:
            ends = [to_doc(_end(self.share, i)) for i in range(self.share.count)]
            self.channel.send({"of": self.launch, "ended": ends})
            self.share = None

    def beat(self) -> None:
        if self.share is not None and not self.silent:
            beats = [[0, 1, 0.0]] * self.share.count
            self.channel.send({"of": self.launch, "beats": beats})


def _end(share: Share, place: int) -> RankEnd:
    return RankEnd(
        rank=share.first + place, pid=1, exit_code=None, signal=9, killed=True, finished=False,
        phase="", step=1, silent_s=0.0, order=0, node=share.node, ended_s=0.0,
    )  # fmt: skip


class Cluster:
    """All simulated agents. ``told`` receives which one is lost and where its replacement joins."""

    def __init__(self, token: Path, import_s: float, connection: Connection) -> None:
        self._key = read_token(token)
        self._import_s, self._told = import_s, connection
        self._facts = replace(machine.detect(), num_cores=64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, None)
        self._agents: dict[int, Stub] = {}
        self._coming: list[tuple[float, int, int]] = []

    def join(self, node: int, port: int) -> None:
        """Add an agent, or the replacement of a lost one."""
        stub = Stub(dial(f"127.0.0.1:{port}", self._key, 60))
        about = Node(
            agent=f"{node}-{port}", door=Address(f"10.0.0.{node}", 1), order=node,
            machine=self._facts, software=machine.software(), environment={},
            accelerators=Accelerators(build="cpu"), facts={},
        )  # fmt: skip
        stub.channel.send({"hello": to_doc(about)})
        self._selector.register(stub.channel, selectors.EVENT_READ, stub)
        self._agents[node] = stub

    def serve(self) -> None:
        """Serve the agents until the measuring program ends the cluster."""
        beaten_at = time.monotonic()
        while True:
            for ready, _ in self._selector.select(0.1):
                if ready.data is not None:
                    self._hear(ready.data)
                elif not self._obey(*self._told.recv()):
                    return
            if time.monotonic() - beaten_at > 1:
                beaten_at = time.monotonic()
                for agent in self._agents.values():
                    agent.beat()
            while self._coming and self._coming[0][0] < time.monotonic():
                _, node, port = self._coming.pop(0)
                self.join(node, port)

    def _hear(self, stub: Stub) -> None:
        messages = stub.channel.receive()
        if messages is None:
            self._selector.unregister(stub.channel)
        for message, _ in messages or ():
            if not stub.silent:
                stub.hear(message)

    def _obey(self, word: str, node: int, port: int) -> bool:
        """Execute a request of the measuring program; return whether to expect further requests."""
        if word == "join":
            self._coming.append((time.monotonic() + self._import_s, node, port))
        elif word == "dies":
            stub = self._agents.pop(node)
            self._selector.unregister(stub.channel)
            stub.channel.close()
        elif word == "falls silent":
            self._agents[node].silent = True
        return word != "close"


def serve(port: int, token: Path, many: int, import_s: float, connection: Connection) -> None:
    cluster = Cluster(token, import_s, connection)
    for node in range(many):
        cluster.join(node, port)
    cluster.serve()


def measure(asked: argparse.Namespace, way: str) -> dict[str, float]:
    """Return the duration (s) of every part of a loss, from the start of the affected launch."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        make_token(token)
        listener = Listener(token)
        settings = {"one_machine": True, "join_s": 300.0}
        where = Where(nodes=(asked.ranks,) * asked.nodes, settings=settings)
        ours, theirs = multiprocessing.Pipe()

        def again(job: Job, node: int, host: str) -> tuple[None, Listener]:
            fresh = Listener(token)
            ours.send(("join", node, fresh.port))
            return None, fresh

        fleet = Fleet(lambda: (Stubs(), listener), where, again)
        child = multiprocessing.get_context("spawn").Process(
            target=serve, args=(listener.port, token, asked.nodes, asked.import_s, theirs),
            daemon=True,
        )  # fmt: skip
        child.start()
        fleet.ready()
        before = [node.agent for node in fleet.nodes]
        site = Site(device=Device.CPU, backend="gloo", nodes=where.nodes)
        case = site.case("ddp/mlp-nano")
        spec = LaunchSpec(launch="w", case=case, out=folder, task=Sweep(), files={})
        began = time.time()
        struck: list[float] = []

        def strike(step: int) -> None:
            if not struck and time.time() - began > asked.launched_s:
                struck.append(time.time())
                ours.send((way, asked.nodes // 3, 0))

        ended = fleet.launch(spec, strike)
        over = time.time()
        fleet.ready()
        there = time.time()
        after = [node.agent for node in fleet.nodes]
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1, "the others stay"
        ours.send(("close", 0, 0))
        fleet.close()
        child.join(20)
    return {
        "the launch until then": struck[0] - began,
        "noticed": ended.noticed_at - struck[0],
        "the world ended, who reaches whom": over - ended.noticed_at,
        "another agent imports torch": asked.import_s,
        "it joins": there - over - asked.import_s,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table of seconds and node-seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--launched-s", type=float, default=5)
    parser.add_argument("--import-s", type=float, default=8)
    asked = parser.parse_args(argv)
    lost = {way: measure(asked, way) for way in WAYS}
    print(
        f"{asked.nodes} nodes, {asked.nodes * asked.ranks:,} ranks; a node dies, or falls silent\n"
    )
    print("| lost with a node | " + " | ".join(f"it {way}, s | node-s" for way in WAYS) + " |")
    print("|---|" + "---|" * 2 * len(WAYS))
    totals = {way: {"**in all**": sum(parts.values())} for way, parts in lost.items()}
    for part in [*lost["dies"], "**in all**"]:
        cells = [(lost[way] | totals[way])[part] for way in WAYS]
        shown = " | ".join(f"{s:.1f} | {s * asked.nodes:,.0f}" for s in cells)
        print(f"| {part} | {shown} |")


if __name__ == "__main__":
    main()
