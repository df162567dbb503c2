"""Nodes without a scheduler: a list of hosts, reached by ssh or by a command typed on each."""

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
    """``gpu01 0,1,4-7``: an address, and the devices to use there (none = all)."""
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
            expected="a host",
            fix="edit the cluster file",
        )
    return match[1], tuple(devices)


class Hosts:
    def probe(self) -> Capabilities:
        """Needs ssh only if it is to be used."""
        return Capabilities(available=True, version="ssh" if shutil.which("ssh") else "by hand")

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """One command for each node; over ssh the token goes through stdin."""
        hosts = [parse(line) for line in deployment.settings["nodes"]]
        if len(hosts) < len(deployment.nodes):
            raise SpecError(
                f"--nodes asks for {len(deployment.nodes)} nodes, {len(hosts)} are listed",
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
        """The command of one node."""
        return self.plan(deployment)[node]

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Processes:
        """Run ssh, or say what to run."""
        return Processes(commands, deployment.folder, read_token(deployment.token_file))


def build() -> Hosts:
    return Hosts()
