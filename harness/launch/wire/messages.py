"""Messages between the main program and its agents, as dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeAlias

import msgspec

from harness.cases import CaseSpec, Fault
from harness.host import secrets
from harness.host.accelerators import Accelerators
from harness.host.machine import Machine
from harness.launch.wire.beats import Phase

#: The name of the file that holds a ``Recorded`` document.
FILE = "recorded.json"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A measured training that was not started by a run, with all facts that its record needs.

    ``steps`` is the number of steps of the window, including the ``cut`` warm-up steps at its
    beginning. The window starts at ``started_at`` and lasts ``lasted_s`` seconds. ``results`` is
    the folder of all runs, and ``argv`` is the command line of the training. ``missing`` maps the
    number of each rank that left no result to the reason.
    """

    case: CaseSpec
    steps: int
    cut: int
    started_at: str
    lasted_s: float
    results: str
    argv: tuple[str, ...]
    missing: Mapping[str, str]


#: The most characters that are kept of an exception's message and of its traceback. Either may
#: contain a printed tensor.
MESSAGE_CHARS = 4_000
TRACEBACK_CHARS = 100_000


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The longest time without progress that a rank may have in each phase, in seconds.

    The agent ends the world if a rank exceeds its limit. ``start_s`` applies until the rank has
    joined the process group, ``first_step_s`` until its first step has ended, ``step_s`` to each
    later step, and ``meet_s`` to waiting for the other ranks at the end. ``collective_s`` is the
    time-out of collectives in the process group. ``idle_s``, if it is not 0, applies to later steps
    of a world on one node without GPUs, if none of its ranks uses a core.
    """

    start_s: float = 60.0
    first_step_s: float = 120.0
    step_s: float = 20.0
    collective_s: float = 60.0
    meet_s: float = 20.0
    idle_s: float = 0.0

    def allowed_s(self, phase: Phase, step: int) -> float:
        """Return the seconds for which a rank may be silent in a phase; all engines use this."""
        if phase <= Phase.GROUP:
            return self.start_s
        if phase >= Phase.FINISH:
            return self.meet_s
        first = phase in (Phase.BUILD, Phase.GATE) or (phase is Phase.WARMUP and step == 0)
        return self.first_step_s if first else self.step_s


@dataclass(frozen=True)
class Address:
    """The address of a TCP socket."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Node:
    """The facts that an agent reports about its machine.

    ``door`` is a socket that accepts connections and never answers; other nodes use it to test
    whether they can reach this one. ``order`` is the agent's position according to a scheduler, or
    -1 if it is unknown. ``environment`` holds the variables of communication backends that are set
    on the machine and can change the speed of any case. ``accelerators`` describes the GPUs that
    ranks can use. ``facts`` describes the machine's hardware and software, for the comparison of
    nodes.
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
    """The progress of a run before its next launch.

    ``elapsed_s`` is the time in seconds since the start of the run. ``left_s`` is the predicted
    time until its end, or None if the end cannot be predicted. ``launch`` describes the next launch
    as names and texts.
    """

    elapsed_s: float
    left_s: float | None
    launch: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The ranks of a world that one agent starts: ``count`` ranks, from rank ``first`` on.

    ``node_first`` and ``node_count`` describe the ranks of the whole node, which several agents may
    share. ``store`` is the address of the rendezvous store that rank 0 serves; None asks this agent
    to open it.

    ``device`` is the number of the first device of the node that this world uses. ``core`` is the
    number of the first core that its CPU ranks use. ``agents`` is the number of agents on the node:
    one, or one for each rank.
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
    """Run the correctness checks of a case.

    ``twin`` is the same case with the smallest model size. Some checks also run at the full size.
    """

    twin: CaseSpec


#: Prefix of the suffix of files about the profiled steps that follow a rank's window.
BEHIND = "behind."


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="timed"):
    """Train ``steps`` steps. The first ``cut`` are warm-up, and the last ``profiled`` are traced.

    If ``pairs`` is not 0, the trace is only an outline without operators. Before the traced steps,
    ``pairs`` single steps with the profiler then alternate with steps without it, which shows the
    overhead of the profiler. ``draw`` is the seed of the random durations of simulated compute.
    ``data_seed`` is the seed of the order of samples. ``behind`` describes further steps of the
    same training, which are profiled and do not belong to the window.
    """

    steps: int
    cut: int
    draw: int
    profiled: int = 0
    pairs: int = 0
    data_seed: int = 0
    behind: "Timed | None" = None


class Refer(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="refer"):
    """Train the model of a case without its strategy, to get losses for a comparison.

    ``of`` is the case. The launched world has one rank for each shard of its batch. If ``streamed``
    is True, a single rank processes the shards one after the other, with one block of the model at
    a time on its device. ``replicates`` is the number of additional trainings with different
    rounding, which show how much the losses vary. If ``coarse`` is True, the replicates round to 16
    bits, for cases that exchange gradients in 16 bits.
    """

    of: CaseSpec
    steps: int
    streamed: bool = False
    replicates: int = 0
    coarse: bool = False
    data_seed: int = 0


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="sweep"):
    """Time all collectives at all payloads, or the collective ``only`` at the largest payload."""

    only: str = ""


class Train(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="train"):
    """Train ``steps`` steps and save a checkpoint in ``folder`` after step ``save_after``.

    ``fault`` is injected into ``rank`` before step ``fault_step``. With ``resume``, training starts
    from the checkpoint. With ``asynchronous``, the checkpoint is saved while training continues.
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
    """Train to ``steps`` from the latest checkpoint in ``folder``; save one every ``every`` steps.

    ``rank`` is killed before its first step at or after ``strike_at`` (seconds since the epoch; 0 =
    never).
    """

    steps: int
    folder: str
    every: int
    strike_at: float = 0.0
    rank: int = 0


class Script(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="script"):
    """Run a user's training script unchanged, and watch ``steps`` of its steps.

    The first ``cut`` of these steps are warm-up. The script runs in a copy of ``folder``. If there
    are paths in ``clean``, it runs in the folder itself, from which these paths are removed before.
    With ``fresh``, the script runs in a separate interpreter. ``profiled`` and ``pairs`` are as in
    ``Timed``. The script only reads the paths in ``data``, so they are not copied. It may write to
    the paths in ``writes``.
    """

    folder: str
    steps: int
    cut: int
    profiled: int = 0
    pairs: int = 0
    fresh: bool = False
    clean: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class Break(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="break"):
    """Run a user's training script for ``steps`` updates of its weights, optionally with a fault.

    The script runs in the folder ``place``. If that folder does not exist yet, it is created as a
    copy of ``folder``. ``words`` is the command of the script. ``fault`` is injected into ``rank``
    before update ``fault_step``. ``fresh``, ``data`` and ``writes`` are as in ``Script``.
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
    writes: tuple[str, ...] = ()


class Place(StrEnum):
    """The data in which an injected bit flip happens."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    SENT = "sent"
    RECEIVED = "received"
    STORED = "stored"


@dataclass(frozen=True, kw_only=True)
class InjectedBitFlip:
    """A flip of bit ``bit`` (0 to 30) in a randomly chosen 32-bit element on one rank.

    In stored data the flip happens once. Otherwise it happens ``times`` times in every step from
    ``step`` on.
    """

    place: Place
    rank: int
    bit: int
    step: int = 0
    times: int = 1


class Bits(msgspec.Struct, frozen=True, kw_only=True, tag_field="task", tag="bits"):
    """Compute the same micro-batches on several ranks, and save hashes of the results.

    The hashes cover every bit, so they reveal a wrong result of one rank. ``flip`` injects such an
    error.
    """

    steps: int
    flip: InjectedBitFlip | None = None


#: What a rank does in a launch. Each task has a file in ``training/rank/tasks``.
Task: TypeAlias = Gate | Timed | Refer | Sweep | Train | Script | Break | Bits | Play


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """A world to start.

    ``files`` maps a kind (strategy, model, compressor) to the name of a module of this package, or
    to the path of a user's file. ``hosts`` holds the numbers of the nodes to use; empty means the
    first ones. ``devices`` holds the first device to use on each node; empty means that the world
    starts at device 0 and runs alone.
    """

    launch: str
    case: CaseSpec
    out: str
    task: Task
    files: Mapping[str, str]
    hosts: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    detailed: bool = (
        False  # torch checks every collective: slow, so only to find the cause of a failure
    )
    deadlines: Deadlines = Deadlines()


@dataclass(frozen=True, kw_only=True)
class RankError:
    """An exception that a rank wrote to a file before it ended."""

    type: str
    message: str
    traceback: str
    peer: bool  # the exception only reports that another rank is gone

    @classmethod
    def of(cls, error: BaseException, message: str, text: str) -> Self:
        """Describe an exception with this message and traceback (``text``).

        Secrets are masked, and the middle of long texts is left out.
        """
        return cls(
            type=type(error).__name__,
            message=_masked(message, MESSAGE_CHARS),
            traceback=_masked(text, TRACEBACK_CHARS),
            peer=False,
        )


def _masked(text: str, most: int) -> str:
    """Return a text without secrets, shortened to about ``most`` characters without its middle.

    Only characters near those that remain are searched for secrets, because a text can be long.
    """
    if len(text) <= most:
        return secrets.masked(text)
    half = most // 2
    near = half + secrets.LONGEST
    start, end = secrets.masked_ends(text[:near], text[-near:])
    return f"{start} ... {len(text) - most} characters ... {end}"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One entry of torch's flight recorder: the ``number``-th operation of a process group."""

    group: str
    number: int
    operation: str
    sizes: str
    created_s: float  # the rank's wall clock when it was issued


@dataclass(frozen=True, kw_only=True)
class LoopState:
    """The position of a user's training in its loop over batches, on one rank.

    ``passes`` is the number of complete passes over the loader of the training, and ``length`` the
    number of batches of the last one. ``batches`` is the number of batches in the current pass.
    """

    passes: int
    length: int
    batches: int


@dataclass(frozen=True, kw_only=True)
class Flight:
    """The last collectives of a rank, and the position of a user's training in its loop."""

    collectives: tuple[Collective, ...]
    loop: LoopState | None = None


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended, with the evidence that distinguishes a culprit from its victims.

    ``state`` is the state of its process. ``stack`` has the stacks of its threads as text.
    ``flight`` has the last collectives in its flight recorder, and ``loop`` is the position of a
    user's training in its loop. ``lost`` is the reason why its whole node was lost; in that case
    nothing else is known about the rank.
    """

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    killed: bool  # by the agent, after another rank had ended or a deadline had passed
    finished: bool  # the rank wrote its result
    phase: str
    step: int
    silent_s: float
    order: int  # 0 = the first rank that was seen to end
    node: int = 0
    ended_s: float = 0.0  # seconds since its agent received the launch
    error: RankError | None = None
    state: str = ""
    stack: str = ""
    flight: tuple[Collective, ...] = ()
    loop: LoopState | None = None
    out_of_memory: bool = False  # the kernel reported that it killed a process for memory
    lost: str = ""


def readings_file(out: Path, first: int) -> Path:
    """Return the path of the file in which an agent records the readings of its devices.

    ``out`` is the folder of the launch, and ``first`` is the agent's first rank.
    """
    return out / f"devices{first}.jsonl"
