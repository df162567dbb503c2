"""Engine that emulates several nodes on this machine, with network links of stated rates.

    bridge namespace   br0 -- v0, v1, ..  each: tbf at the rate of its link
    node namespaces    eth0 10.77.0.1, 10.77.0.2, ..  each: tbf at the rate of its link
    with delays        tun0 in each, all opened by one switch, with the routes through it

Every node is a network namespace that is connected to a bridge. The namespaces belong to processes
that die with this program, so none is left behind. The engine works as root, or in a user namespace
for other users. Its results are labelled as emulated wherever they are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.base import programs
from harness.base.errors import LaunchError
from harness.launch.dialers import InheritingJob, agent_command
from harness.launch.emulation.shaping import Links, buffers, links_of, shape
from harness.launch.emulation.switch import DEVICE, MTU
from harness.launch.engine import Capabilities, Command, Deployment, Job, State, last_line
from harness.launch.wire.channel import Channel
from harness.launch.wire.messages import LaunchSpec

ENGINE = dict(
    multi_node=True, one_machine=True, always_emulated=True, shapes_links=True,
    faults=("agent", "node"),
)  # fmt: skip
KNOBS = dict(rate_mbit=1000.0, delay_ms=0.0, slow_links="", far_links="")

#: Programs that the engine runs.
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "sysctl")
#: Seconds that a process has to create its namespace.
START_S = 10.0


def address(node: int) -> str:
    """Return the IP address of a node in the emulated network."""
    return f"10.77.0.{node + 1}"


def enter(pid: str, *, net: bool = True) -> tuple[str, ...]:
    """Return the words that run a command in the namespaces of a process."""
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    return ("nsenter", f"--target={pid}", *user, *(("--net",) if net else ()))


class Emulated:
    """The engine. Its commands contain placeholders for pids, such as ``{bridge}``, ``{node0}``."""

    def probe(self) -> Capabilities:
        """Return whether iproute2 and util-linux are installed, and namespaces are allowed."""
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            return Capabilities(available=False, reason=f"{missing[0]} is not installed")
        command = ["unshare", *_user(), "--net", "true"]
        if subprocess.run(command, capture_output=True).returncode:
            return Capabilities(
                available=False,
                reason="network namespaces are not allowed (not root, and no user namespaces)",
            )
        return Capabilities(available=True)

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the commands that create the bridge, the namespaces, links and agents."""
        hold = ("setpriv", "--pdeathsig=KILL", "sleep", "infinity")
        nodes = range(len(deployment.nodes))
        commands = [Command(nodes=(), argv=("unshare", *_user(), "--net", *hold))]
        inside = enter("{bridge}", net=False)
        prefix = inside if len(inside) > 2 else ()
        commands += [Command(nodes=(), argv=(*prefix, "unshare", "--net", *hold)) for _ in nodes]
        lines = ["link add br0 type bridge stp_state 0", "link set br0 up", "link set lo up"]
        for i in nodes:
            lines += [
                f"link add v{i} type veth peer name eth0 netns {{node{i}}}",
                f"link set v{i} master br0 up",
            ]
        commands.append(_batch("{bridge}", "ip", lines))
        for i in nodes:
            mine = [f"addr add {address(i)}/24 dev eth0", "link set lo up", "link set eth0 up"]
            commands.append(_batch(f"{{node{i}}}", "ip", mine))
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        for i in nodes:
            where = enter(f"{{node{i}}}")
            command = agent_command(deployment.python, i, env, where, f"--address={address(i)}")
            commands.append(command)
        return tuple(commands)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> EmulatedJob:
        """Create the network, then start the agents."""
        return EmulatedJob(commands)


def _user() -> tuple[str, ...]:
    """Return the options of unshare that an ordinary user needs."""
    return () if os.geteuid() == 0 else ("--user", "--map-root-user")


def _batch(pid: str, tool: str, lines: Sequence[str]) -> Command:
    """Return a command that runs ``ip`` or ``tc`` in a namespace, with these lines on stdin."""
    return Command(nodes=(), argv=(*enter(pid), tool, "-batch", "-"), files={"-": "\n".join(lines)})


class EmulatedJob(Job):
    """The processes that hold the namespaces, and the agents that run in them."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}  # keys: bridge, node0, node1, ..
        self._agents: InheritingJob | None = None
        self._switch: subprocess.Popen[str] | None = None
        self._shaped: Links | None = None
        try:
            for command in commands:
                if "sleep" in command.argv:
                    self._hold(command)
                elif not command.nodes:
                    self._run(command)
            agents = [c for c in commands if c.nodes]
            self._agents = InheritingJob(
                [replace(agent, argv=self._filled(agent.argv)) for agent in agents]
            )
        except BaseException:
            self.stop()
            raise

    def _filled(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Replace placeholders in a command by the pids of the processes that hold namespaces."""
        words = []
        for word in argv:
            for name, holder in self._holders.items():
                word = word.replace(f"{{{name}}}", str(holder.pid))
            words.append(word)
        return tuple(words)

    def _hold(self, command: Command) -> None:
        """Start a process that holds a namespace, and wait until the namespace exists."""
        ours = Path("/proc/self/ns/net").readlink()
        process = subprocess.Popen(
            self._filled(command.argv), stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._holders[f"node{len(self._holders) - 1}" if self._holders else "bridge"] = process
        deadline = time.monotonic() + START_S
        while not self._inside(process.pid, ours):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(
                    "cannot create a network namespace",
                    where="emulated engine",
                    expected="the user is root, or user namespaces are allowed",
                    fix="unshare --user --net true",
                )
            time.sleep(0.002)

    @staticmethod
    def _inside(pid: int, ours: Path) -> bool:
        """Return whether the process that keeps a network namespace open is ready.

        It is ready if it has left the namespace ``ours`` and executes ``sleep``.
        """
        try:
            namespace = Path(f"/proc/{pid}/ns/net").readlink()
            return (
                namespace != ours
                and Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "sleep"
            )
        except OSError:
            return False

    def _run(self, command: Command) -> None:
        """Run a command that sets up the network. Raise LaunchError if it fails."""
        text = self._filled(tuple(command.files.values()))[0] if command.files else ""
        done = subprocess.run(
            self._filled(command.argv), input=text.encode(), capture_output=True, check=False
        )
        if done.returncode:
            output = done.stderr.decode(errors="replace").strip().splitlines()
            raise LaunchError(
                f"{' '.join(command.argv[-3:])}: {output[0] if output else done.returncode}",
                where="emulated engine",
                expected="iproute2, and a kernel with veth, bridge and tbf",
                fix="modprobe sch_tbf veth bridge",
            )

    def prepare(self, spec: LaunchSpec) -> None:
        """Shape the links of all nodes to the rates and delays of this case."""
        if len(spec.case.nodes) < 2:
            return
        links = links_of(spec.case, Path(__file__).stem, KNOBS, len(self._holders) - 1)
        if links == self._shaped:
            return
        for node, rate in enumerate(links.rates):
            slower = {address(b): r for (a, b), r in links.between.items() if a == node}
            self._run(_batch("{bridge}", "tc", shape(f"v{node}", rate)))
            self._run(_batch(f"{{node{node}}}", "tc", shape("eth0", rate, slower)))
            sizes = buffers(rate, max(links.delay_ms[node]))
            argv = (*enter(f"{{node{node}}}"), "sysctl", "-q", "-w", *sizes)
            self._run(Command(nodes=(), argv=argv))
        self._end_switch()
        if links.delayed:
            self._start_switch(links)
        self._shaped = links

    def _start_switch(self, links: Links) -> None:
        """Start the switch that adds delays, and route all traffic through its devices."""
        nodes = range(len(links.rates))
        plan = dict(
            pids=[self._holders[f"node{i}"].pid for i in nodes],
            own=links.rates,
            between=[(a, b, rate) for (a, b), rate in links.between.items()],
            delay_ms=links.delay_ms,
        )
        inside = enter(str(self._holders["bridge"].pid), net=False)
        prefix = inside if len(inside) > 2 else ()
        self._switch = subprocess.Popen(
            [
                *prefix,
                "setpriv",
                "--pdeathsig=KILL",
                *(sys.executable, *programs.MODULE, programs.SWITCH, json.dumps(plan)),
            ],
            cwd=programs.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        assert self._switch.stdout is not None and self._switch.stderr is not None
        if self._switch.stdout.readline() != "ready\n":
            raise LaunchError(
                f"the switch for delays does not start: {last_line(self._switch.stderr.read())}",
                where="emulated engine",
                expected="access to /dev/net/tun for this user",
                fix="modprobe tun",
            )
        for i in nodes:
            ways = [
                f"link set {DEVICE} mtu {MTU} up",
                # The kernel prefers this route to the shorter prefix (/24) of eth0.
                f"route add 10.77.0.0/25 dev {DEVICE} src {address(i)}",
            ]
            self._run(_batch(f"{{node{i}}}", "ip", ways))

    def _end_switch(self) -> None:
        """Kill the switch; its devices and the routes through them disappear with it."""
        if self._switch is not None:
            self._switch.kill()
            self._switch.communicate()
            self._switch = None

    def channels(self) -> Mapping[int, Channel]:
        """Map nodes to the channels of their agents."""
        assert self._agents is not None
        return self._agents.channels()

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Start another agent in the same namespace, after setting the node's link up again."""
        assert self._agents is not None
        self._run(_batch(str(self._holders[f"node{node}"].pid), "ip", ["link set eth0 up"]))
        self._shaped = None  # shape the links again, because a link that was down lost its routes
        return self._agents.renew(node, command, token)

    def abandon(self, node: int) -> None:
        """Kill the agent of a node and every process that it left behind."""
        assert self._agents is not None
        self._agents.abandon(node)

    def poll(self) -> tuple[State, str]:
        """Return the state of the agents."""
        assert self._agents is not None
        return self._agents.poll()

    def stop(self) -> None:
        """End the agents, then the switch and the namespaces."""
        if self._agents is not None:
            self._agents.stop()
        self._end_switch()
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
        self._holders = {}


def build() -> Emulated:
    """Return the engine."""
    return Emulated()
