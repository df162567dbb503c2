"""The contract of an engine: where it can start agents, with which commands, and how they are
doing.

    probe -> is it here?     plan -> commands (pure, printed by --dry-run)     start -> Job

A Job's agents then launch worlds, whoever started them (``fleet``): an engine is argv, scripts,
manifests and the names of states, never scheduling.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from harness.base import programs
from harness.base.documents import Json
from harness.base.errors import LaunchError
from harness.cases import Device, Entry
from harness.launch.wire.channel import Channel
from harness.launch.wire.messages import LaunchSpec, RankEnd

#: Called a few times a second while a launch runs, with the step that the slowest rank is at.
Tick = Callable[[int], None]
#: Told several times a second how many agents are there, of how many, and what their job says.
Watch = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a launch ended, one entry per rank that was asked for; ``agent`` names who ran it.

    ``lasted_s`` is from its command to its last rank's end.
    ``unreachable`` are nodes that the other nodes could not connect to afterwards.
    """

    ranks: tuple[RankEnd, ...]
    agent: str
    lasted_s: float = 0.0
    unreachable: tuple[int, ...] = ()
    noticed_at: float = 0.0  # when a failure was first heard of, s since the epoch; 0 = never


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """An engine's abilities here; ``reason`` says what is missing when it is not ``available``."""

    available: bool
    reason: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a run's ranks are to be started.

    ``nodes``: ranks on each. ``settings``: the engine's table of a cluster file. ``folder``: for
    scripts, logs and the token, on a disk that all nodes share if the engine needs one.
    ``shared_gpu``: ranks may have to share a device.
    """

    nodes: tuple[int, ...] = (1,)
    device: Device = Device.CPU
    shared_gpu: bool = False
    folder: Path = Path("results/engine")
    settings: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deployment(Where):
    """A request to an engine: an agent on each of these nodes.

    Agents join ``join`` (HOST:PORT) with the secret in ``token_file``.
    """

    join: str
    token_file: Path
    python: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command to be run here: it starts the agents of ``nodes``.

    ``files`` are written first: path -> text. ``by_hand`` is for a person to run on that node,
    ``place`` says where another program runs it.
    """

    nodes: tuple[int, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    by_hand: bool = False
    place: str = ""


class State(StrEnum):
    """How a job is doing, in one vocabulary for all engines."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Job(ABC):
    """The job that ``start`` leaves running."""

    def channels(self) -> Mapping[int, Channel]:
        """Node -> channel of the agents that inherited a socket; none where they all dial in."""
        return {}

    def prepare(self, spec: LaunchSpec) -> None:
        """Set up what this launch needs beside its ranks, as the rates of its links: nothing."""
        return None

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Start the agent of one node again, by this command if it is to dial in.

        Its channel if it inherits one. LaunchError where an agent cannot be started alone.
        """
        raise LaunchError("an agent cannot be started alone here")

    def abandon(self, node: int) -> None:
        """Nothing more is expected of what was started for one node."""
        return None

    @abstractmethod
    def poll(self) -> tuple[State, str]:
        """How it is doing, and what the engine itself says of it."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and wait until nothing of it is left. May be called twice."""


def last_line(text: str, otherwise: str = "no output") -> str:
    """The last thing that a process said; of an error of ours what is wrong, not what to try."""
    lines = text.strip().splitlines()
    ours = [line for line in lines if line.startswith("ERROR: ")]
    return (ours or lines or [otherwise])[-1].removeprefix("ERROR: ")


class Engine(Protocol):
    """One file of ``engines/`` builds one."""

    def probe(self) -> Capabilities:
        """Whether it can be used here, and if not, why."""

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Plans what ``start`` will run: pure."""

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Job:
        """Run the commands of that plan."""


class Queue(Protocol):
    """The queue of an engine whose head says ``queues``: it keeps a whole run until its turn."""

    def leave(self, deployment: Deployment, command: Sequence[str]) -> str:
        """Submit a job whose first node runs this command; its id."""

    def left(self, deployment: Deployment, command: Sequence[str]) -> str:
        """The script of such a job, as it could be submitted by hand."""

    def log(self, folder: Path) -> Path:
        """Where such a job writes."""

    def state_of(self, job: str) -> tuple[str, str]:
        """The queue's word for a job, and its reason; empty when the job is not in it."""

    def cancel(self, job: str) -> None:
        """End a job, and wait until it has left."""


def queue_of(entry: Entry) -> Queue:
    """The queue of an engine that has one."""
    queue: Queue = programs.load_module(entry.module).build()
    return queue


def make(entry: Entry) -> Engine:
    """The engine of a discovered file (its ``build()``)."""
    engine: Engine = programs.load_module(entry.module).build()
    return engine


def importable() -> dict[str, str]:
    """The path that a process on this machine or another needs to import this package as we do."""
    path = filter(None, (str(programs.ROOT), os.environ.get("PYTHONPATH", "")))
    return {**RANK_ENV, "PYTHONPATH": os.pathsep.join(path)}


#: Environment of every process that imports torch for us, and why.
RANK_ENV: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # a forking agent may have one thread only
    "RES_OPTIONS": "timeout:1 attempts:3",  # TCPStore asks DNS; a lost reply costs 1 s, not 5
    "KINETO_LOG_LEVEL": "5",  # kineto writes to stderr when a profiler starts
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # is_available() without a CUDA context
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML numbers them
}
