"""Recovery: what a rank that trained with a checkpoint left, and what a planted fault took."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.cases.fault_scenario import title

#: What a recovery consists of, in order.
PARTS = ("detect", "stop", "import", "start", "group", "load", "step")


@dataclass(frozen=True, kw_only=True)
class RankRestart:
    """The restart of one rank, of a training with a checkpoint.

    ``saved``, ``loaded`` and ``last`` are digests of parameters and optimizer state: when they were
    saved, after they were loaded, and at the end; empty where that did not happen. ``stall_s`` is
    how long training stood still to save, ``save_s`` until all was written; ``first_step_at`` is
    the time (s since the epoch) at which its first step was done.
    """

    rank: int
    first_step: int
    losses: tuple[float, ...]
    saved: str
    loaded: str
    last: str
    load_s: float
    save_s: float
    stall_s: float
    bytes: int
    first_step_at: float
    phases_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update of the weights of a user's own training, as one rank saw it.

    ``state`` is a digest of the parameters after it, ``samples`` one of what it trained on, ``at``
    when its optimizer had stepped (s since the epoch). The first one is none: its ``state`` is
    what the training began with. ``began_at`` is when the script was started; ``spent_s`` says
    what it has spent in calls that set up its process group, load and save, up to then.
    """

    at: float
    began_at: float
    state: str
    samples: str
    loss: float
    spent_s: Mapping[str, float]


class Continued(StrEnum):
    """How a resumed training goes on, compared with one that was never broken."""

    EXACTLY = "exactly"
    OTHER_SAMPLES = "from the same weights, on other samples"
    OTHER_LOSSES = "from the same weights, with other losses"
    BEGINNING = "from the beginning"
    OTHER_WEIGHTS = "from weights that it never had"


#: A resumed training may draw its samples anew; nothing that it had learnt is lost by that.
FINE = frozenset({Continued.EXACTLY, Continued.OTHER_SAMPLES})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One planted fault and what came after it, in s from the fault on.

    ``detect_s`` until the break was noticed (``timeout_s`` of it by its nature: silence has to last
    that long), ``stop_s`` until nothing of the old world was left, ``import_s`` until agents that
    were lost had been replaced and had torch in memory, ``start_s`` until the new ranks ran,
    ``group_s`` until they had met, ``load_s`` to load, ``step_s`` until the first step was done;
    they add up to ``recovery_s``. ``equal``: the end is that of a training that was never broken,
    to the bit. ``world_before`` and ``world`` are the sizes of the old and the new world: where
    they differ, only what was loaded can be equal. ``blamed`` is the rank that was named,
    ``attempt`` 1 the fresh set that confirms a FAIL. Of a user's own script, ``continued`` says how
    it went on, and ``lost`` how many updates of the broken training were done again.
    """

    case: str
    fault: str
    rank: int
    blamed: int | None
    world_before: int
    world: int
    detect_s: float
    stop_s: float
    start_s: float
    group_s: float
    load_s: float
    step_s: float
    equal: bool
    import_s: float = 0.0
    timeout_s: float = 0.0
    asynchronous: bool = False
    stall_s: float = 0.0
    save_s: float = 0.0
    bytes: int = 0
    attempt: int = 0
    continued: Continued | None = None
    lost: int | None = None

    @property
    def name(self) -> str:
        return title(self.case, self.fault, self.asynchronous, self.world_before, self.world)

    @property
    def recovery_s(self) -> float:
        """From the fault to the first step of the new world."""
        return math.fsum(getattr(self, f"{part}_s") for part in PARTS)


class Mark(StrEnum):
    """The event that has just ended on rank 0."""

    READY = "ready"  # the process group and the model are there
    LOADED = "loaded"
    STEP = "step"
    SAVED = "saved"


@dataclass(frozen=True, kw_only=True)
class TrainingAttempt:
    """One start of the training, until its end or a fault. Times in ns since the epoch.

    ``marks`` are (what ended, after how many steps, when) of rank 0. ``struck_ns`` is when a rank
    was killed, ``noticed_ns`` when the program saw it; None of the sitting that ends the training.
    """

    began_ns: int
    marks: tuple[tuple[Mark, int, int], ...]
    rank: int | None = None
    struck_ns: int | None = None
    noticed_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class FaultedTraining:
    """A training of ``steps`` steps that saves after every ``every``, and the faults it had.

    ``mtbf_s`` is the mean time between faults that ``seed`` drew them with; None where one was
    planted to measure what a fault costs, or none was.
    """

    case: str
    world_size: int
    steps: int
    every: int
    mtbf_s: float | None
    seed: int
    sittings: tuple[TrainingAttempt, ...]
