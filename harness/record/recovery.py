"""Records of injected faults, and of trainings that were interrupted and resumed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.cases.fault_scenario import title

#: The parts of a recovery in their order.
PARTS = ("detect", "stop", "import", "start", "group", "load", "step")


@dataclass(frozen=True, kw_only=True)
class RankRestart:
    """The restart of one rank of a training with checkpoints.

    ``saved``, ``loaded`` and ``last`` are digests of the parameters and the optimizer state when
    they were saved, after they were loaded, and at the end. A digest is empty if that event did not
    happen. ``stall_s`` is the time in seconds for which training waited for the save, and
    ``save_s`` is the time until everything was written. ``first_step_at`` is the time at which the
    first step ended, in seconds since the epoch.
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
    """One update of the weights in a user's training, as one rank saw it.

    ``state`` is a digest of the parameters after the update, and ``samples`` is a digest of the
    samples of the update. ``at`` is the time after its optimizer step, in seconds since the epoch.
    The first entry is not an update: its ``state`` is the state in which the training began.
    ``began_at`` is the time at which the script started. ``spent_s`` is the total time in seconds,
    since the script started, in calls that set up the process group, load or save.
    """

    at: float
    began_at: float
    state: str
    samples: str
    loss: float
    spent_s: Mapping[str, float]


class Continued(StrEnum):
    """How a resumed training compares with one that was not interrupted.

    ``OTHER_WEIGHTS`` means that the resumed training started from weights that the interrupted
    training never had.
    """

    EXACTLY = "exactly"
    OTHER_SAMPLES = "from the same weights, on other samples"
    OTHER_LOSSES = "from the same weights, with other losses"
    BEGINNING = "from the beginning"
    OTHER_WEIGHTS = "from weights that it never had"


#: Results that are acceptable. Drawing samples anew after a resume loses no progress.
FINE = frozenset({Continued.EXACTLY, Continued.OTHER_SAMPLES})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One injected fault and the recovery from it.

    The recovery consists of consecutive parts, in seconds, that add up to ``recovery_s``.
    ``detect_s`` lasts from the fault until the failure was noticed. Of this time, ``timeout_s`` is
    unavoidable, because a hang is noticed only after a timeout of this length. ``stop_s`` lasts
    until the old world has ended. ``import_s`` lasts until lost agents were replaced and had
    imported torch. ``start_s`` lasts until the new ranks ran, ``group_s`` until they had formed
    their process group, ``load_s`` until the checkpoint was loaded, and ``step_s`` until the first
    step ended.

    ``equal`` is True if the final state is bitwise equal to the final state of an uninterrupted
    training. ``world_before`` and ``world`` are the sizes of the old and the new world; if they
    differ, only the loaded state is compared. ``rank`` is the rank in which the fault was injected,
    and ``blamed`` is the rank that was reported as the cause. ``attempt`` is 1 in the new set of
    trials that confirms a FAIL, otherwise 0. For a user's script, ``continued`` says how it
    resumed, and ``lost`` is the number of updates that were repeated.
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
        """The name of the scenario that this trial belongs to."""
        return title(self.case, self.fault, self.asynchronous, self.world_before, self.world)

    @property
    def recovery_s(self) -> float:
        """The time from the fault to the first step of the new world, in s."""
        return math.fsum(getattr(self, f"{part}_s") for part in PARTS)


class Mark(StrEnum):
    """The event that has just ended on rank 0."""

    READY = "ready"  # the process group and the model were created
    LOADED = "loaded"
    STEP = "step"
    SAVED = "saved"


@dataclass(frozen=True, kw_only=True)
class TrainingAttempt:
    """One start of the training, until its end or a fault. Times are in ns since the epoch.

    ``marks`` are the events of rank 0 as (event, number of completed steps, time). ``rank`` is the
    rank that was killed, ``struck_ns`` is the time at which it was killed, and ``noticed_ns`` is
    the time at which the program noticed it. All three are None for the attempt that completes the
    training.
    """

    began_ns: int
    marks: tuple[tuple[Mark, int, int], ...]
    rank: int | None = None
    struck_ns: int | None = None
    noticed_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class FaultedTraining:
    """A training of ``steps`` steps that faults interrupted.

    The training saves a checkpoint after every ``every`` steps. ``sittings`` are the attempts, each
    from a start of the training until its end or a fault.
    ``mtbf_s`` is the mean time between faults, which are drawn with ``seed``. It is None if a
    single fault was injected to measure its cost, or if there was no fault.
    """

    case: str
    world_size: int
    steps: int
    every: int
    mtbf_s: float | None
    seed: int
    sittings: tuple[TrainingAttempt, ...]
