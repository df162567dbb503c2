"""Messages between a launching program and its agents."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeAlias

import msgspec

from harness.cases import CaseSpec, Fault
from harness.host.accelerators import Accelerators
from harness.host.machine import Machine
from harness.launch.wire.beats import Phase

#: The file of it.
FILE = "recorded.json"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """``steps`` are those of the window with its warm-up, the ``cut``; the window lies between
    ``started_at`` and ``lasted_s`` later. ``results`` is where runs are kept, ``argv`` what was
    typed. ``missing`` says why ranks left nothing, by their numbers.
    """

    case: CaseSpec
    steps: int
    cut: int
    started_at: str
    lasted_s: float
    results: str
    argv: tuple[str, ...]
    missing: Mapping[str, str]


#: What is kept of an exception's message and of its traceback, which may hold a tensor.
MESSAGE_CHARS = 4_000
TRACEBACK_CHARS = 100_000


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Longest silence of a rank in each phase, in seconds, before the world is ended."""

    start_s: float = 60.0
    first_step_s: float = 120.0
    step_s: float = 20.0
    collective_s: float = 60.0
    meet_s: float = 20.0

    def allowed_s(self, phase: Phase, step: int) -> float:
        """How long a rank may be silent there; whoever started it, the rule is one."""
        if phase <= Phase.GROUP:
            return self.start_s
        if phase >= Phase.FINISH:
            return self.meet_s
        first = phase in (Phase.BUILD, Phase.GATE) or (phase is Phase.WARMUP and step == 0)
        return self.first_step_s if first else self.step_s


@dataclass(frozen=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Node:
    """An agent's facts of the machine it is on. ``door`` takes connections and never answers.

    ``order`` is where a scheduler put it among the others; -1 = nobody said. ``environment`` are
    the variables of backends that can change speed and are set there, whatever a case says.
    ``accelerators`` are the GPUs that ranks can use there, ``facts`` what nodes have in common.
    """

    agent: str
    door: Address
    order: int
    machine: Machine
    software: Mapping[str, str]
    environment: Mapping[str, str]
    accelerators: Accelerators
    facts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class HowFar:
    """Where a run is before its next launch: s spent and left (None: not foreseen), and what that
    ``launch`` is, in words by their name.
    """

    elapsed_s: float
    left_s: float | None
    launch: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The ranks of a world that one agent starts: ``count`` of them, from rank ``first`` on.

    ``node_first`` and ``node_count`` are the ranks of its whole node, which several agents may
    share. ``store`` is where rank 0 serves the rendezvous; None asks this agent to open it.

    ``device`` is the first of the node's devices that this world has, ``core`` the first core of
    its CPU ranks there. ``agents`` is how many are on that node: one, or one for each of its ranks.
    """

    node: int
    first: int
    count: int
    node_first: int
    node_count: int
    device: int = 0
    core: int = 0
    agents: int = 1
    store: Address | None = None


class Gate(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="gate"):
    """Check that training is right: the case's ``twin`` (smallest size), and once the full size."""

    twin: CaseSpec


#: Before the suffix of a file that a rank leaves of the steps behind its window.
BEHIND = "behind."


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="timed"):
    """Train ``steps`` steps, the first ``cut`` of them to warm up, the last ``profiled`` traced.

    With ``pairs`` they are outlined: no operators are followed, and what that costs is seen.
    ``draw`` seeds the launch's own noise (paced schedule), ``data_seed`` the order of samples.
    ``behind`` are further steps of the same training, which are profiled and no part of the window.
    """

    steps: int
    cut: int
    draw: int
    profiled: int = 0
    pairs: int = 0
    data_seed: int = 0
    behind: "Timed | None" = None


class Refer(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="refer"):
    """Train the plain model of a case as the harness itself does: the losses to compare with.

    ``of`` is the case; the world that is launched has one rank for each of its shards. Where it is
    ``streamed``, one rank takes the shards in turn, with one block of the model on its device.
    ``replicates``: so many trainings more, each of which rounds otherwise, with gradients as in 16
    bits where they are exchanged so (``coarse``).
    """

    of: CaseSpec
    steps: int
    streamed: bool = False
    replicates: int = 0
    coarse: bool = False
    data_seed: int = 0


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="sweep"):
    """Time the collectives: ``only`` one at the largest payload, or all of them at all."""

    only: str = ""


class Train(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="train"):
    """Train with a checkpoint in ``folder`` after step ``save_after``, broken or gone on with.

    ``fault`` strikes ``rank`` before step ``fault_step``; ``resume`` starts from the checkpoint.
    """

    steps: int
    folder: str
    save_after: int
    resume: bool = False
    asynchronous: bool = False
    fault: Fault = Fault.NONE
    rank: int = 0
    fault_step: int = 0


class Play(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="play"):
    """Train to ``steps`` from the latest checkpoint in ``folder``, with one after ``every`` steps.

    ``rank`` is killed before its first step at or after ``strike_at`` (s since the epoch; 0 =
    never).
    """

    steps: int
    folder: str
    every: int
    strike_at: float = 0.0
    rank: int = 0


class Script(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="script"):
    """Run a user's own training, unchanged, and watch ``steps`` of its steps; ``cut`` warm up.

    It starts in a copy of ``folder``, or with ``clean`` there itself, once these paths are removed;
    ``fresh``: in an interpreter of its own. ``profiled`` and ``pairs`` are as in ``Timed``. Paths
    of ``data`` are only read, and shared with the folder.
    """

    folder: str
    steps: int
    cut: int
    profiled: int = 0
    pairs: int = 0
    fresh: bool = False
    clean: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class Break(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="break"):
    """Run a user's own training for ``steps`` updates of its weights, and break it if asked to.

    It runs in ``place``, which becomes a copy of ``folder`` where there is none yet; ``words`` is
    its command. ``fault`` strikes ``rank`` before update ``fault_step``. ``fresh`` and ``data`` are
    as in ``Script``.
    """

    folder: str
    place: str
    words: str
    steps: int
    fault: Fault = Fault.NONE
    rank: int = 0
    fault_step: int = 0
    fresh: bool = False
    data: tuple[str, ...] = ()


class Place(StrEnum):
    """Where a planted flip of a bit strikes."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    SENT = "sent"
    RECEIVED = "received"
    STORED = "stored"


@dataclass(frozen=True, kw_only=True)
class InjectedBitFlip:
    """Bit ``bit`` (0 to 30) of one element of 32 bits, drawn anew each time, on one rank.

    In every step from ``step`` on, ``times`` times; in what is stored, once.
    """

    place: Place
    rank: int
    bit: int
    step: int = 0
    times: int = 1


class Bits(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="bits"):
    """Compute the same micro-batches on several ranks, and leave hashes of every bit."""

    steps: int
    flip: InjectedBitFlip | None = None


#: What a rank does in a launch; each has its file in ``training/rank/tasks``.
Task: TypeAlias = Gate | Timed | Refer | Sweep | Train | Script | Break | Bits | Play


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """One world to start. ``files`` maps kind -> the strategy, model and compressor: a module of
    this package by its name, a user's by the path of its file. ``hosts`` are the nodes to use, by
    their numbers; empty = the first ones. ``devices`` are the first devices to use there; empty =
    from 0 on, and no other world beside this one.
    """

    launch: str
    case: CaseSpec
    out: str
    task: Task
    files: Mapping[str, str]
    hosts: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    detailed: bool = False  # under torch's own check of every collective: slow, for evidence only
    deadlines: Deadlines = Deadlines()


@dataclass(frozen=True, kw_only=True)
class RankError:
    """An exception that a rank wrote down before it ended."""

    type: str
    message: str
    traceback: str
    peer: bool  # it only reports that another rank is gone

    @classmethod
    def of(cls, error: BaseException, message: str, text: str) -> Self:
        """An exception's, of a message and a ``text`` of any length: beginning and end are kept."""
        return cls(
            type=type(error).__name__,
            message=_bounded(message, MESSAGE_CHARS),
            traceback=_bounded(text, TRACEBACK_CHARS),
            peer=False,
        )


def _bounded(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {len(text) - most} characters ... {text[-most // 2 :]}"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One entry of torch's flight recorder: the ``number``-th operation of a process group."""

    group: str
    number: int
    operation: str
    sizes: str
    created_s: float  # the rank's wall clock when it was issued


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended, with the evidence that tells a culprit from its victims.

    ``lost``: its whole node is gone, and why; nothing else is then known of the rank.
    """

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    killed: bool  # by the agent, after another rank had ended or a deadline had passed
    finished: bool  # left its result behind
    phase: str
    step: int
    silent_s: float
    order: int  # 0 = first rank seen to end
    node: int = 0
    ended_s: float = 0.0  # since its agent was asked for the launch
    error: RankError | None = None
    state: str = ""
    stack: str = ""
    flight: tuple[Collective, ...] = ()
    out_of_memory: bool = False  # the kernel says that it killed a process for memory
    lost: str = ""


def readings_file(out: Path, first: int) -> Path:
    """Where a launch's folder has the readings of the devices of an agent, by its first rank."""
    return out / f"devices{first}.jsonl"
