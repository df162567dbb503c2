"""Several nodes on this machine: namespaces joined by a bridge, every link shaped to a stated rate.

    bridge namespace   br0 -- v0, v1, ..  each: tbf at the rate of its link
    node namespaces    eth0 10.77.0.1, 10.77.0.2, ..  each: tbf at the rate of its link

The namespaces belong to processes that die with us, so none is ever left. As root, or in a user
namespace of an ordinary user. What is measured over it is labelled wherever it is shown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.channel import Channel
from harness.errors import LaunchError
from harness.launch.engine import Capabilities, Command, Deployment, State
from harness.launch.inherit import InheritingJob, agent_command
from harness.protocol import LaunchSpec
from harness.spec import CaseSpec

ENGINE = dict(multi_node=True, one_machine=True, always_emulated=True)
KNOBS = dict(rate_mbit=1000.0, delay_ms=0.0, slow_links="")

#: Rates from which a token bucket and TCP's own buffers need no help, in Mbit/s.
SLOW_MBIT = 200.0
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "sysctl")
START_S = 10.0


def address(node: int) -> str:
    """Where a node is on the emulated network."""
    return f"10.77.0.{node + 1}"


@dataclass(frozen=True, kw_only=True)
class Links:
    """Rates in Mbit/s: of each node's own link, and between two nodes where that is less."""

    own: tuple[float, ...]
    between: Mapping[tuple[int, int], float]


def links_of(case: CaseSpec, num_nodes: int) -> Links:
    """``rate_mbit`` for every link; ``slow_links`` is ``1:100`` for a node's, ``1-2:100`` for the
    way between two, several with commas.
    """
    usual = float(case.knob("emulated.rate_mbit", KNOBS["rate_mbit"]))
    own, between = [usual] * num_nodes, {}
    for part in filter(None, str(case.knob("emulated.slow_links", "")).split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?:([\d.]+)", part)
        if match is None:
            raise LaunchError(
                f"emulated.slow_links: {part!r}", where=case.id,
                expected="1:100 (node 1's link) or 1-2:100 (between nodes 1 and 2), in Mbit/s",
                fix="--set emulated.slow_links=1:100",
            )  # fmt: skip
        node, other, rate = int(match[1]), match[2], float(match[3])
        if other is not None:
            between[node, int(other)] = between[int(other), node] = rate
        elif node < len(own):
            own[node] = rate
    return Links(own=tuple(own), between=between)


def burst(rate_mbit: float) -> int:
    """8 ms of a rate, in bytes: less chokes it, and bursts below it pass unshaped."""
    return max(int(rate_mbit * 1e6 / 8 * 8e-3), 16_000)


def shape(device: str, rate_mbit: float, slower: Mapping[str, float] | None = None) -> list[str]:
    """Tc's commands: a token bucket; with ways that are ``slower``, a class for each address."""
    if not slower:
        bucket = f"rate {rate_mbit:g}mbit burst {burst(rate_mbit)} latency 200ms"
        return [f"qdisc replace dev {device} root handle 1: tbf {bucket}"]
    lines = [f"qdisc replace dev {device} root pfifo"]  # htb cannot replace another htb
    lines.append(f"qdisc replace dev {device} root handle 2: htb default 1")
    for i, (to, rate) in enumerate([("", rate_mbit), *slower.items()], 1):
        bucket = f"rate {rate:g}mbit burst {burst(rate)} cburst {burst(rate)}"
        lines.append(f"class replace dev {device} parent 2: classid 2:{i} htb {bucket}")
        if to:
            match = f"u32 match ip dst {to}/32"
            lines.append(f"filter add dev {device} parent 2: protocol ip {match} flowid 2:{i}")
    return lines


def buffers(rate_mbit: float) -> list[str]:
    """Sysctl's arguments: on slow links megabytes would queue ahead of gloo's own messages."""
    wide = "4096 65536 262144" if rate_mbit <= SLOW_MBIT else "4096 131072 6291456"
    return [f"net.ipv4.tcp_wmem={wide}", f"net.ipv4.tcp_rmem={wide}"]


def enter(pid: str, *, net: bool = True) -> tuple[str, ...]:
    """To run something in the namespaces of a process."""
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    return ("nsenter", f"--target={pid}", *user, *(("--net",) if net else ()))


class Emulated:
    """The engine. Placeholders ``{bridge}`` and ``{node0}`` stand for pids until it is started."""

    def probe(self) -> Capabilities:
        """Needs iproute2, util-linux, and the right to make a network namespace."""
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            return Capabilities(available=False, reason=f"{missing[0]} is not installed")
        own = ["unshare", *_user(), "--net", "true"]
        if subprocess.run(own, capture_output=True).returncode:
            return Capabilities(
                available=False,
                reason="network namespaces are not allowed (not root, and no user namespaces)",
            )
        return Capabilities(available=True)

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """A bridge, a namespace for each node, the links, and an agent in each."""
        hold = ("setpriv", "--pdeathsig=KILL", "sleep", "infinity")
        nodes = range(len(deployment.nodes))
        out = [Command(nodes=(), argv=("unshare", *_user(), "--net", *hold))]
        inside = enter("{bridge}", net=False)
        prefix = inside if len(inside) > 2 else ()
        out += [Command(nodes=(), argv=(*prefix, "unshare", "--net", *hold)) for _ in nodes]
        lines = ["link add br0 type bridge stp_state 0", "link set br0 up", "link set lo up"]
        for i in nodes:
            lines += [
                f"link add v{i} type veth peer name eth0 netns {{node{i}}}",
                f"link set v{i} master br0 up",
            ]
        out.append(_batch("{bridge}", "ip", lines))
        for i in nodes:
            mine = [f"addr add {address(i)}/24 dev eth0", "link set lo up", "link set eth0 up"]
            out.append(_batch(f"{{node{i}}}", "ip", mine))
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        for i in nodes:
            where = enter(f"{{node{i}}}")
            command = agent_command(deployment.python, i, env, where, f"--address={address(i)}")
            out.append(command)
        return tuple(out)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> EmulatedJob:
        """Make the network, then start the agents."""
        return EmulatedJob(commands)


def _user() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else ("--user", "--map-root-user")


def _batch(pid: str, tool: str, lines: Sequence[str]) -> Command:
    """``ip`` or ``tc`` inside a namespace; its lines come on stdin."""
    return Command(nodes=(), argv=(*enter(pid), tool, "-batch", "-"), files={"-": "\n".join(lines)})


class EmulatedJob:
    """The namespaces' holders and the agents in them."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        self._pids: dict[str, str] = {}
        self._agents: InheritingJob | None = None
        self._shaped: tuple[Links, tuple[int, ...]] | None = None
        try:
            for command in commands:
                if "sleep" in command.argv:
                    self._hold(command)
                elif not command.nodes:
                    self._run(command)
            agents = [c for c in commands if c.nodes]
            self._agents = InheritingJob([replace(c, argv=self._filled(c.argv)) for c in agents])
        except BaseException:
            self.stop()
            raise

    def _filled(self, argv: Sequence[str]) -> tuple[str, ...]:
        out = []
        for word in argv:
            for name, pid in self._pids.items():
                word = word.replace(f"{{{name}}}", pid)
            out.append(word)
        return tuple(out)

    def _hold(self, command: Command) -> None:
        """Start a holder, and wait until it is in its own namespace."""
        ours = Path("/proc/self/ns/net").readlink()
        process = subprocess.Popen(
            self._filled(command.argv), stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._holders.append(process)
        deadline = time.monotonic() + START_S
        while not self._inside(process.pid, ours):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(
                    "a network namespace could not be made", where="emulated engine",
                    expected="root, or user namespaces", fix="unshare --user --net true",
                )  # fmt: skip
            time.sleep(0.002)
        name = f"node{len(self._holders) - 2}" if len(self._holders) > 1 else "bridge"
        self._pids[name] = str(process.pid)

    @staticmethod
    def _inside(pid: int, ours: Path) -> bool:
        """Whether a holder has left our namespace and only waits now."""
        try:
            own = Path(f"/proc/{pid}/ns/net").readlink()
            return own != ours and Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
        except OSError:
            return False

    def _run(self, command: Command) -> None:
        text = self._filled(tuple(command.files.values()))[0] if command.files else ""
        done = subprocess.run(
            self._filled(command.argv), input=text.encode(), capture_output=True, check=False
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise LaunchError(
                f"{' '.join(command.argv[-3:])}: {said[0] if said else done.returncode}",
                where="emulated engine",
                expected="iproute2, and a kernel with veth, bridge and tbf",
                fix="modprobe sch_tbf veth bridge",
            )

    def prepare(self, spec: LaunchSpec) -> None:
        """Shape the links to the rates of this case."""
        if spec.case.knob("emulated.delay_ms", 0.0):
            raise LaunchError(
                "emulated.delay_ms is not emulated", where=spec.case.id,
                expected="0: latency is not emulated yet", fix="--set emulated.delay_ms=0",
            )  # fmt: skip
        if len(spec.case.nodes) < 2:
            return
        hosts = spec.hosts or tuple(range(len(spec.case.nodes)))
        links = links_of(spec.case, max(hosts) + 1)
        if (links, hosts) == self._shaped:
            return
        for node in hosts:
            rate = links.own[node]
            slower = {address(b): r for (a, b), r in links.between.items() if a == node}
            self._run(_batch("{bridge}", "tc", shape(f"v{node}", rate)))
            self._run(_batch(f"{{node{node}}}", "tc", shape("eth0", rate, slower)))
            argv = (*enter(f"{{node{node}}}"), "sysctl", "-q", "-w", *buffers(rate))
            self._run(Command(nodes=(), argv=argv))
        self._shaped = (links, hosts)

    def channels(self) -> Mapping[int, Channel]:
        """The agents'."""
        assert self._agents is not None
        return self._agents.channels()

    def poll(self) -> tuple[State, str]:
        """As its agents do."""
        assert self._agents is not None
        return self._agents.poll()

    def stop(self) -> None:
        """The agents leave, then their namespaces."""
        if self._agents is not None:
            self._agents.stop()
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._holders = []


def build() -> Emulated:
    """The engine."""
    return Emulated()
