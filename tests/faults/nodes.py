"""Nodes on this machine whose agents are forked from one process that has loaded torch.

They are real agents on separate channels, but a lost one is replaced in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from unittest import mock

from harness.launch.engine import RANK_ENV, Job, State, Where
from harness.launch.fleet import Fleet
from harness.launch.wire.channel import Channel
from harness.launch.wire.messages import LaunchSpec
from harness.training.agent import agent

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([agent.__name__])
#: Fleets start concurrently in threads, and must not patch the environment at the same time.
STARTING = threading.Lock()


def serve(theirs: socket.socket) -> None:
    """Run an agent in the forked process."""
    agent.main([f"--fd={theirs.detach()}", "--address=127.0.0.1"])


class ForkedJob(Job):
    """The agents' processes."""

    def __init__(self, num_nodes: int) -> None:
        self._processes: list[BaseProcess] = []
        self._channels: dict[int, Channel] = {}
        for node in range(num_nodes):
            ours, theirs = socket.socketpair()
            with (
                STARTING,
                theirs,
                mock.patch.dict(os.environ, RANK_ENV),
            ):  # because the first process loads torch
                process = FORKS.Process(target=serve, args=(theirs,))
                process.start()
            self._processes.append(process)
            self._channels[node] = Channel(ours, dialed=False)

    def prepare(self, spec: LaunchSpec) -> None:
        """Do nothing: nodes need no preparation."""

    def channels(self) -> Mapping[int, Channel]:
        """Return our ends of the channels."""
        return self._channels

    def poll(self) -> tuple[State, str]:
        """Report the job as ended as soon as one agent has ended."""
        ended = any(p.exitcode is not None for p in self._processes)
        return (State.ENDED, "an agent ended") if ended else (State.RUNNING, "")

    def stop(self) -> None:
        """Kill all agents, stopped ones included."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes = []


def forked(where: Where) -> Fleet:
    """Make a fleet of such nodes."""
    return Fleet(lambda: (ForkedJob(len(where.nodes)), None), where)
