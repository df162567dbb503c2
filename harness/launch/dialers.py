"""Agents that dial in: the command that starts one, and what holds its process: here, or elsewhere.

Agents listen to nobody: only the program that waits for them can be knocked at, and only until they
are there.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base import programs
from harness.launch.children import LEAVE_S, die_with_parent
from harness.launch.engine import Command, Deployment, Job, State, last_line
from harness.launch.wire.channel import Channel

#: Seconds in which an agent must reach the program that had it started, and so was there first.
WAIT_S = 60.0


def agent(deployment: Deployment, *options: str, token: str = "") -> list[str]:
    """The command of an agent on some node; the token is named by its file, or comes on stdin."""
    return [
        *(*deployment.python, *programs.MODULE, programs.AGENT),
        *("--join", deployment.join, "--token-file", token or str(deployment.token_file)),
        f"--wait={WAIT_S:.0f}",
        *options,
    ]


def shell(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """One line for another machine's shell."""
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join(["exec env", *words, shlex.join(argv)])


class Host:
    """Holds one agent's process on another machine, inside an actor, and dies with it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], token: bytes) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (an undrained pipe would block it)
        self._process = subprocess.Popen(
            list(argv),
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(token)
            self._process.stdin.close()

    def poll(self) -> str:
        """Empty while it runs, else the last thing that it wrote."""
        if (status := self._process.poll()) is None:
            return ""
        self._output.seek(0)
        return f"status {status}: {last_line(self._output.read().decode(errors='replace'))}"

    def stop(self) -> None:
        """End it, if it has not left by itself."""
        try:
            self._process.wait(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Processes(Job):
    """Commands that run on this machine for as long as their agents live: srun, ssh, or none."""

    def __init__(self, commands: Sequence[Command], folder: Path, token: bytes = b"") -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # by the names of their logs
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for i, command in enumerate(commands):
            self._start(_alone(i) if len(commands) > 1 else "agents", command, token)

    def _start(self, name: str, command: Command, token: bytes) -> None:
        for path, text in command.files.items():
            Path(path).write_text(text, encoding="utf-8")
        if command.by_hand:
            (node,) = command.nodes
            sys.stderr.write(f"on node {node} run:  {shlex.join(command.argv)}\n")
            return
        with (self._folder / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                command.argv,
                env={**os.environ, **command.env},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(token)
            process.stdin.close()
        self._processes[name] = process

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Another agent beside those that are there; what started one alone goes with it."""
        assert command is not None
        self.abandon(node)
        self._start(_alone(node), command, token)
        return None

    def abandon(self, node: int) -> None:
        if (process := self._processes.pop(_alone(node), None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def poll(self) -> tuple[State, str]:
        """Ended as soon as one command has."""
        for name, process in self._processes.items():
            if (status := process.poll()) is not None:
                log = self._folder / f"{name}.log"
                last = last_line(log.read_text(errors="replace", encoding="utf-8"))
                return State.ENDED, f"status {status}: {last} (log {log})"
        return State.RUNNING, ""

    def stop(self) -> None:
        """The agents leave by themselves once nobody talks to them; end what stays."""
        for process in self._processes.values():
            try:
                process.wait(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes = {}


def _alone(node: int) -> str:
    """The name of an agent that was started by itself."""
    return f"agent{node}"
