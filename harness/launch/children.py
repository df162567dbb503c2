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
    python: str, node: int, env: Mapping[str, str], prefix: Sequence[str] = (), *options: str
) -> Command:
    """An agent of this package, behind ``prefix`` (a namespace to enter, for example)."""
    return Command(
        nodes=(node,),
        argv=(*prefix, python, "-m", programs.AGENT, *options),
        env={**importable(), **env},
    )


class InheritingJob(Job):
    def __init__(self, commands: Sequence[Command]) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said: list[IO[bytes]] = []
        self._channels: dict[int, Channel] = {}
        processes.adopt()  # what an agent that is killed leaves is ours to end
        self._family = processes.new_family()
        for command in commands:
            ours, theirs = socket.socketpair()
            said = tempfile.TemporaryFile()  # noqa: SIM115  (an undrained pipe would block it)
            process = subprocess.Popen(
                [*command.argv, f"--fd={theirs.fileno()}", f"--parent={os.getpid()}"],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **command.env, **self._family},
                stdin=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            theirs.close()
            self._processes.append(process)
            self._said.append(said)
            self._channels[command.nodes[0]] = Channel(ours, dialed=False)

    def channels(self) -> Mapping[int, Channel]:
        return self._channels

    def poll(self) -> tuple[State, str]:
        """Ended as soon as one agent has; with the last thing that it wrote."""
        for process, said in zip(self._processes, self._said, strict=True):
            if (status := process.poll()) is not None:
                said.seek(0)
                last = last_line(said.read().decode(errors="replace"))
                return State.ENDED, f"the agent ended (status {status}): {last}"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Wait for the agents to leave; end those that do not."""
        for process, said in zip(self._processes, self._said, strict=True):
            process.send_signal(signal.SIGCONT)  # a stopped one cannot leave
            try:
                process.wait(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            said.close()
        processes.end(self._family, {process.pid for process in self._processes})
        self._processes, self._said = [], []
