"""Start agents: local child processes, and remote agents that connect to the main program."""

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.base import programs
from harness.launch.engine import Command, Deployment, Job, State, importable, last_line
from harness.launch.wire import evidence
from harness.launch.wire.channel import Channel

#: Seconds that an agent has to exit after its connection is closed, before it is killed.
LEAVE_S = 5.0
#: Seconds within which a process whose connection is closed has an exit status.
ENDING_S = 5.0
#: Option of prctl(2) that sets the signal that a process receives when its parent dies.
_PR_SET_PDEATHSIG = 1


def named(status: int) -> str:
    """Return the exit status of a process in words: ``status 1``, ``signal SIGKILL``."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, for whatever reason.

    To be called in a forked child before exec; the setting survives exec.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def agent_command(
    python: tuple[str, ...],
    node: int,
    env: Mapping[str, str],
    prefix: Sequence[str] = (),
    *options: str,
) -> Command:
    """Return the command that starts the agent of a node.

    ``prefix`` holds words to put in front, for example a command that enters a network namespace.
    """
    return Command(
        nodes=(node,),
        argv=(*prefix, *python, *programs.MODULE, programs.AGENT, *options),
        env={**importable(), **env},
    )


class InheritingJob(Job):
    """Agents that run as child processes on this machine, each with an inherited socket."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.nodes[0]: command for command in commands}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, IO[bytes]] = {}
        self._channels: dict[int, Channel] = {}
        evidence.adopt()  # makes it possible to end the processes that a killed agent leaves
        self._families: dict[int, dict[str, str]] = {}
        for node in self._commands:
            self._start(node)

    def _start(self, node: int) -> None:
        command = self._commands[node]
        ours, theirs = socket.socketpair()
        self._families[node] = evidence.new_family()
        output = tempfile.TemporaryFile()  # noqa: SIM115  (a full pipe would block the agent)
        self._processes[node] = subprocess.Popen(
            [*command.argv, f"--fd={theirs.fileno()}", f"--parent={os.getpid()}"],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **command.env, **self._families[node]},
            stdin=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
        theirs.close()
        self._said[node] = output
        self._channels[node] = Channel(ours, dialed=False)

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Replace an agent that is gone or does not answer, and return the new channel."""
        self.abandon(node)
        self._start(node)
        return self._channels[node]

    def abandon(self, node: int) -> None:
        """Kill the agent of a node and every process that it left behind."""
        if (process := self._processes.pop(node, None)) is not None:
            process.kill()
            process.wait()
            evidence.end(self._families[node], {process.pid})
            self._said.pop(node).close()

    def channels(self) -> Mapping[int, Channel]:
        return self._channels

    def poll(self) -> tuple[State, str]:
        """Return ENDED as soon as one agent has ended, with the last line that it wrote."""
        for node, process in self._processes.items():
            if self._channels[node].closed:  # the agent is ending: its status follows soon
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=ENDING_S)
            if (status := process.poll()) is not None:
                output = self._said[node]
                output.seek(0)
                last = last_line(output.read().decode(errors="replace"))
                return State.ENDED, f"the agent ended ({named(status)}): {last}"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Wait for the agents to exit, and kill the agents that do not."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)  # a stopped process could not exit
            try:
                process.wait(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for output in self._said.values():
            output.close()
        for node, process in self._processes.items():
            evidence.end(self._families[node], {process.pid})
        self._processes = {}
        self._said = {}


#: Seconds that an agent has to connect to the main program. The main program starts the agent, so
#: it is already listening.
WAIT_S = 60.0


def agent(deployment: Deployment, *options: str, token: str = "") -> list[str]:
    """Return the command of an agent that connects to the main program.

    ``token`` is the path of the file with the token, by default that of the deployment. The path
    ``/dev/stdin`` passes the token through the standard input.
    """
    return [
        *(*deployment.python, *programs.MODULE, programs.AGENT),
        *("--join", deployment.join, "--token-file", token or str(deployment.token_file)),
        f"--wait={WAIT_S:.0f}",
        *options,
    ]


def shell(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a line for the shell of another machine, which runs a command in an environment."""
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join(["exec env", *words, shlex.join(argv)])


class Host:
    """The process of one agent on another machine, started inside an actor of Ray or Monarch.

    The kernel kills the agent when the actor's process dies.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], token: bytes) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (a full pipe would block the agent)
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
        """Return the agent's exit status and last line of output, or "" while it runs."""
        if (status := self._process.poll()) is None:
            return ""
        self._output.seek(0)
        return f"{named(status)}: {last_line(self._output.read().decode(errors='replace'))}"

    def stop(self) -> None:
        """Wait for the agent to exit, and kill it if it does not."""
        try:
            self._process.wait(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Processes(Job):
    """Agents started by commands on this machine (srun, ssh), which run until the agents end.

    A command that a person has to run by hand is printed instead.
    """

    def __init__(self, commands: Sequence[Command], folder: Path, token: bytes = b"") -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # keyed by the name of the log
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
        """Kill the command of a node's agent if it started only that agent, and run the new one."""
        assert command is not None
        self.abandon(node)
        self._start(_alone(node), command, token)
        return None

    def abandon(self, node: int) -> None:
        """Kill the command that started only the agent of this node, if there is one."""
        if (process := self._processes.pop(_alone(node), None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def poll(self) -> tuple[State, str]:
        """Return ENDED as soon as one command has ended, with the last line of its log."""
        for name, process in self._processes.items():
            if (status := process.poll()) is not None:
                log = self._folder / f"{name}.log"
                last = last_line(log.read_text(errors="replace", encoding="utf-8"))
                return State.ENDED, f"{named(status)}: {last} (log {log})"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Wait for the commands to exit, and kill the commands that do not.

        The agents exit by themselves after their connections are closed.
        """
        for process in self._processes.values():
            try:
                process.wait(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes = {}


def _alone(node: int) -> str:
    """Return the name of the command for this node's agent alone. Its log has the same name."""
    return f"agent{node}"
