"""Measure the CPU time that the launching program needs per agent: for joining, and for a launch.

Agents are simulated in one separate process and connect over loopback. They join, send heartbeats,
and report that their ranks have ended. Only the CPU time of the launching process is counted.

    python benchmarks/cost/fleet.py [--agents 256 1024 4096] [--ranks 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import selectors
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.base.documents import Json, from_doc, to_doc
from harness.cases import Device, Site
from harness.host import machine
from harness.host.accelerators import Accelerators
from harness.launch.engine import Job, State, Where
from harness.launch.fleet import Fleet
from harness.launch.wire.channel import Channel, Listener, dial, make_token, read_token
from harness.launch.wire.messages import Address, LaunchSpec, Node, RankEnd, Share, Sweep


class Stubs(Job):
    """A job whose simulated agents connect without being started."""

    def poll(self) -> tuple[State, str]:
        return State.RUNNING, "stubs"

    def stop(self) -> None:
        """Do nothing, because the agents end when their channels are closed."""


def stubs(port: int, token: Path, many: int, ranks: int) -> None:
    """Run the simulated agents in this process, each with its channel."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    facts = replace(machine.detect(), num_cores=64)
    key, selector = read_token(token), selectors.DefaultSelector()
    for order in range(many):
        channel = dial(f"127.0.0.1:{port}", key, 60)
        about = Node(
            agent=f"{order}", door=Address(f"10.0.{order // 256}.{order % 256}", 1), order=order,
            machine=facts, software=machine.software(), environment={},
            accelerators=Accelerators(build="cpu"), facts={},
        )  # fmt: skip
        channel.send({"hello": to_doc(about)})
        selector.register(channel, selectors.EVENT_READ, channel)
    while selector.get_map():
        for ready, _ in selector.select():
            channel = ready.data
            messages = channel.receive()
            if messages is None:
                selector.unregister(channel)
                channel.close()
            for message, _ in messages or ():
                if "launch" in message:
                    _answer(channel, message)


def _answer(channel: Channel, message: Mapping[str, Json]) -> None:
    """Answer like an agent whose ranks end immediately; the first agent reports the store."""
    share, of = from_doc(Share, message["share"]), message["launch"]
    if share.first == 0:
        channel.send({"of": of, "store": to_doc(Address("127.0.0.1", 1))})
    channel.send({"of": of, "beats": [[0, 1, 0.0]] * share.count})
    ends = [
        RankEnd(
            rank=share.first + i, pid=1, exit_code=0, signal=None, killed=False, finished=True,
            phase="", step=1, silent_s=0.0, order=0, node=share.node, ended_s=0.0,
        )
        for i in range(share.count)
    ]  # fmt: skip
    channel.send({"of": of, "ended": [to_doc(end) for end in ends]})


def measure(many: int, ranks: int) -> dict[str, float]:
    """Return the CPU time (s) of joining and of one launch."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        make_token(token)
        listener = Listener(token)
        where = Where(nodes=(ranks,) * many, settings={"one_machine": True, "join_s": 300.0})
        fleet = Fleet(lambda: (Stubs(), listener), where)
        child = multiprocessing.get_context("spawn").Process(
            target=stubs, args=(listener.port, token, many, ranks), daemon=True
        )
        child.start()
        before, began = time.process_time(), time.monotonic()
        fleet.ready()
        joined, there = time.process_time(), time.monotonic()
        site = Site(device=Device.CPU, backend="gloo", nodes=where.nodes)
        spec = LaunchSpec(
            launch="w", case=site.case("ddp/mlp-nano"), out=folder, task=Sweep(), files={}
        )
        launches = []
        for _ in range(3):
            at = time.process_time()
            ended = fleet.launch(spec, lambda step: None)
            assert len(ended.ranks) == many * ranks and all(e.finished for e in ended.ranks)
            launches.append(time.process_time() - at)
        fleet.close()
        child.join(20)
    return {
        "agents": many, "ranks": many * ranks, "join_s": there - began,
        "join_cpu_s": joined - before, "launch_cpu_s": min(launches),
    }  # fmt: skip


def exponent(rows: Sequence[Mapping[str, float]], what: str) -> float:
    """Return the exponent of the growth with the number of agents between the outer sizes."""
    first, last = rows[0], rows[-1]
    return math.log(last[what] / first[what]) / math.log(last["agents"] / first["agents"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [measure(many, asked.ranks) for many in asked.agents]
    if asked.json:
        print(json.dumps(rows))
        return 0
    print("agents   ranks   join   its CPU   CPU of a launch")
    for row in rows:
        print(
            f"{row['agents']:6.0f} {row['ranks']:7.0f} {row['join_s']:5.1f} s"
            f" {row['join_cpu_s']:7.2f} s {row['launch_cpu_s']:15.2f} s"
        )
    if len(rows) > 1:
        grown = {what: exponent(rows, what) for what in ("join_cpu_s", "launch_cpu_s")}
        print(", ".join(f"{what} grows as agents^{power:.2f}" for what, power in grown.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
