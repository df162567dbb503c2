"""Engine for a list of hosts without a scheduler.

Agents are started over ssh, or by a command that a person runs on each host.
"""

import re
import shutil

from harness.base.errors import SpecError
from harness.launch.dialers import Processes, agent, shell
from harness.launch.engine import Capabilities, Command, Deployment, importable
from harness.launch.wire.channel import read_token

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    nodes=[], ssh=True, listen="", port=0, token_file="", python="", one_machine=False,
)  # fmt: skip


def parse(line: str) -> tuple[str, tuple[int, ...]]:
    """Split an entry such as ``gpu01 0,1,4-7`` into the host and the devices to use on it.

    An entry without devices means all devices. Raise SpecError for an entry that is not a host.
    """
    match = re.fullmatch(r"\s*(\S+)(?:\s+(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?\s*", line)
    ranges = [p.partition("-") for p in (match[2] or "").split(",") if p] if match else []
    if match is None or any(last and int(last) < int(first) for first, _, last in ranges):
        raise SpecError(
            f"{line!r} is not a host",
            where="[hosts] nodes",
            expected="'gpu01' or 'gpu01 0,1,4-7'",
            fix="edit the cluster file",
        )
    devices: list[int] = []
    for first, _, last in ranges:
        devices += range(int(first), int(last or first) + 1)
    if match[1].startswith("-"):
        raise SpecError(
            f"{line!r} would be an option of ssh",
            where="[hosts] nodes",
            expected="the name or address of a host",
            fix="edit the cluster file",
        )
    return match[1], tuple(devices)


class Hosts:
    """The engine for a list of hosts."""

    def probe(self) -> Capabilities:
        """Return that the engine can always be used, because ssh is optional."""
        return Capabilities(available=True, version="ssh" if shutil.which("ssh") else "by hand")

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return one command for each node. Over ssh, the token is passed through stdin."""
        hosts = [parse(line) for line in deployment.settings["nodes"]]
        if len(hosts) < len(deployment.nodes):
            raise SpecError(
                f"--nodes requests {len(deployment.nodes)} nodes, but {len(hosts)} are listed",
                where="[hosts] nodes",
                expected="an entry for each node",
                fix=f"--nodes {len(hosts)}" if hosts else 'nodes = ["a", "b"] in --cluster FILE',
            )
        commands = []
        for i, (host, devices) in enumerate(hosts[: len(deployment.nodes)]):
            env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {}
            argv: tuple[str, ...]
            if deployment.settings["ssh"]:
                remote = agent(deployment, f"--order={i}", token="/dev/stdin")
                argv = (
                    "ssh",
                    "-oBatchMode=yes",
                    "--",
                    host,
                    shell(remote, {**importable(), **env}),
                )
            else:
                argv = (
                    *(("env", *(f"{key}={value}" for key, value in env.items())) if env else ()),
                    *("scaleproof", "jobs", "join", deployment.join),
                    *("--token-file", str(deployment.token_file), f"--order={i}"),
                )
            commands.append(Command(nodes=(i,), argv=argv, by_hand=not deployment.settings["ssh"]))
        return tuple(commands)

    def again(self, deployment: Deployment, node: int, host: str) -> Command:
        """Return the command that starts the agent of one node again."""
        return self.plan(deployment)[node]

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Processes:
        """Run the ssh commands, or print the commands that a person has to run."""
        return Processes(commands, deployment.folder, read_token(deployment.token_file))


def build() -> Hosts:
    """Return the engine."""
    return Hosts()
