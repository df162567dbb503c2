"""The interface of an engine, which starts agents on the nodes of a run.

    probe -> can it be used here?   plan -> commands (pure, printed by --dry-run)   start -> Job

An engine only knows commands, scripts, manifests and the states of its scheduler. Launching worlds
with the started agents is the same for all engines (``fleet``).
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

#: A function that is called a few times a second during a launch. Its argument is the number of
#: steps that the slowest rank has made.
Tick = Callable[[int], None]
#: A function that is called several times a second while agents start. Its arguments are the number
#: of agents that are ready, the number that is wanted, and the status text of their job.
Watch = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of a launch: how each of its ranks ended.

    ``agent`` names the agents that ran it. ``lasted_s`` is the time in seconds from the command
    that started it to the end of its last rank. ``unreachable`` holds the nodes that the other
    nodes could not connect to afterwards.
    """

    ranks: tuple[RankEnd, ...]
    agent: str
    lasted_s: float = 0.0
    unreachable: tuple[int, ...] = ()
    noticed_at: float = 0.0  # when a failure was first reported, s since the epoch; 0 = never


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Whether an engine can be used on this machine, and its version.

    ``reason`` says what is missing if the engine is not ``available``.
    """

    available: bool
    reason: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Where:
    """The nodes and devices on which a run's ranks start.

    ``nodes`` holds the number of ranks on each node. ``shared_gpu`` means that ranks may have to
    share a GPU. ``folder`` is for scripts, logs and the token; it is on a disk that all nodes share
    if the engine needs one. ``settings`` is the engine's table in the cluster file.
    """

    nodes: tuple[int, ...] = (1,)
    device: Device = Device.CPU
    shared_gpu: bool = False
    folder: Path = Path("results/engine")
    settings: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deployment(Where):
    """A request to an engine to start an agent on each of the nodes.

    Agents connect to ``join`` (HOST:PORT) with the secret in ``token_file``. ``python`` holds the
    words of the command that starts Python on a node.
    """

    join: str
    token_file: Path
    python: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command to run on this machine, which starts the agents of ``nodes``.

    ``files`` maps paths to texts that are written before the command runs. ``by_hand`` means that a
    person has to run the command on the node. If another program runs the command, such as Ray,
    ``place`` says where.
    """

    nodes: tuple[int, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    by_hand: bool = False
    place: str = ""


class State(StrEnum):
    """The state of a job, with the same names for all engines."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Job(ABC):
    """The running job that an engine's ``start`` returns; it holds the agents of a fleet."""

    def channels(self) -> Mapping[int, Channel]:
        """Map nodes to the channels of agents that inherited a socket.

        The result is empty if the agents connect to a listener instead.
        """
        return {}

    def prepare(self, spec: LaunchSpec) -> None:
        """Set up what a launch needs in addition to its ranks, for example the rates of links.

        The default does nothing.
        """
        return None

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Start the agent of one node again, and return its channel if it inherits one.

        ``command`` starts an agent that connects to a listener. Raise LaunchError if the engine
        cannot start a single agent.
        """
        raise LaunchError("this engine cannot start a single agent")

    def abandon(self, node: int) -> None:
        """Give up the agent of one node, so that the end of this agent does not end the job."""
        return None

    @abstractmethod
    def poll(self) -> tuple[State, str]:
        """Return the state of the job and the engine's own text about it."""

    @abstractmethod
    def stop(self) -> None:
        """End the job, and wait until all its processes are gone. May be called twice."""


def last_line(text: str, otherwise: str = "no output") -> str:
    """Return the last line of a process's output, or ``otherwise`` if there is none.

    An error message of this package starts with ``ERROR: ``. That line is preferred, because the
    lines after it only say what to try. Errors that Python ignores at exit are left out.
    """
    lines = text.partition("\nException ignored")[0].strip().splitlines()
    ours = [line for line in lines if line.startswith("ERROR: ")]
    return (ours or lines or [otherwise])[-1].removeprefix("ERROR: ")


class Engine(Protocol):
    """An engine, as ``build()`` of a file in ``engines/`` returns it."""

    def probe(self) -> Capabilities:
        """Return whether the engine can be used on this machine, and if not, why."""

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the commands that ``start`` will run, without any side effect."""

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Job:
        """Run the commands that ``plan`` returned, and return their job."""


class Queue(Protocol):
    """The scheduler's queue of an engine whose head sets ``queues``.

    A whole run can be submitted to it as a job that starts when its turn comes.
    """

    def leave(self, deployment: Deployment, command: Sequence[str]) -> str:
        """Submit a job whose first node runs this command, and return its id."""

    def left(self, deployment: Deployment, command: Sequence[str]) -> str:
        """Return the script of the job that ``leave`` submits. A user could submit it, too."""

    def log(self, folder: Path) -> Path:
        """Return the path of the file to which a job of ``leave`` writes its output."""

    def state_of(self, job: str) -> tuple[str, str]:
        """Return the scheduler's state for a job and the reason it reports.

        Both are empty if the job is not queued.
        """

    def cancel(self, job: str) -> None:
        """Cancel a job, and wait until it has left the queue."""


def queue_of(entry: Entry) -> Queue:
    """Return the queue of an engine that has one."""
    queue: Queue = programs.load_module(entry.module).build()
    return queue


def make(entry: Entry) -> Engine:
    """Return the engine that the ``build()`` of a discovered file creates."""
    engine: Engine = programs.load_module(entry.module).build()
    return engine


def importable() -> dict[str, str]:
    """Return the environment that a process on any node needs to import this package.

    It holds ``RANK_ENV`` and a ``PYTHONPATH`` that starts with the root of this package.
    """
    path = filter(None, (str(programs.ROOT), os.environ.get("PYTHONPATH", "")))
    return {**RANK_ENV, "PYTHONPATH": os.pathsep.join(path)}


#: Environment variables of every agent and rank, with the reason for each.
RANK_ENV: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # an agent forks ranks, so it may have only one thread
    "RES_OPTIONS": "timeout:1 attempts:3",  # TCPStore asks DNS; a lost reply costs 1 s, not 5
    "KINETO_LOG_LEVEL": "5",  # otherwise kineto writes to stderr when a profiler starts
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # is_available() must not create a CUDA context
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that CUDA numbers devices as NVML does
}
