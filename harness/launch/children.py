"""Agents on this machine: started by us, each on a socket that it inherits, so nothing listens."""

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from harness.base import programs
from harness.launch.engine import Command, Job, State, importable, last_line
from harness.launch.wire import processes
from harness.launch.wire.channel import Channel

#: Seconds that an agent has to leave once nobody talks to it.
LEAVE_S = 5.0
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In the forked child: SIGKILL when we are gone, however we went; exec keeps it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def agent_command(
    python: tuple[str, ...],
    node: int,
    env: Mapping[str, str],
    prefix: Sequence[str] = (),
    *options: str,
) -> Command:
    """An agent of this package, behind ``prefix`` (a namespace to enter, for example)."""
    return Command(
        nodes=(node,),
        argv=(*prefix, *python, *programs.MODULE, programs.AGENT, *options),
        env={**importable(), **env},
    )


class InheritingJob(Job):
    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.nodes[0]: command for command in commands}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, IO[bytes]] = {}
        self._channels: dict[int, Channel] = {}
        processes.adopt()  # what an agent that is killed leaves is ours to end
        self._families: dict[int, dict[str, str]] = {}
        for node in self._commands:
            self._start(node)

    def _start(self, node: int) -> None:
        command = self._commands[node]
        ours, theirs = socket.socketpair()
        self._families[node] = processes.new_family()
        output = tempfile.TemporaryFile()  # noqa: SIM115  (an undrained pipe would block it)
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
        """Another agent in the place of one that is gone, or does not answer."""
        self.abandon(node)
        self._start(node)
        return self._channels[node]

    def abandon(self, node: int) -> None:
        if (process := self._processes.pop(node, None)) is not None:
            process.kill()
            process.wait()
            processes.end(self._families[node], {process.pid})
            self._said.pop(node).close()

    def channels(self) -> Mapping[int, Channel]:
        return self._channels

    def poll(self) -> tuple[State, str]:
        """Ended as soon as one agent has; with the last thing that it wrote."""
        for node, process in self._processes.items():
            if (status := process.poll()) is not None:
                output = self._said[node]
                output.seek(0)
                last = last_line(output.read().decode(errors="replace"))
                return State.ENDED, f"the agent ended (status {status}): {last}"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Wait for the agents to leave; end those that do not."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)  # a stopped one cannot leave
            try:
                process.wait(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for output in self._said.values():
            output.close()
        for node, process in self._processes.items():
            processes.end(self._families[node], {process.pid})
        self._processes = {}
        self._said = {}
