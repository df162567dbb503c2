"""Define the anatomy of a step of a user's training: where its time is spent, and lost."""

from dataclasses import dataclass
from enum import StrEnum


class StepPart(StrEnum):
    """A part of a step on the host. ``Samples.parts_s`` has one column for each of them, in order.

    The first four parts do not overlap. ``OTHER`` is the rest of the step. The others may be inside
    any of these: files that the script saves, the interpreter's garbage collection, and collectives
    that the script calls itself.
    """

    BATCHES = "batches"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    SAVING = "saving"
    GARBAGE = "garbage"
    CALLS = "calls"


@dataclass(frozen=True, kw_only=True)
class CalledCollective:
    """The calls of one function of torch.distributed in a mean step on one rank.

    ``host_s`` is the time that the host spends in them.
    """

    count: float
    host_s: float


@dataclass(frozen=True, kw_only=True)
class SlowSteps:
    """The steps of a kept window that take more than twice the median step, and lose most.

    ``share`` is the fraction of the window's time that they take. ``part`` is where most of their
    additional time is lost, on the rank that the others wait for, and ``part_s`` is this time for
    each slow step. ``begins`` counts the slow steps in which a pass over a loader begins. ``every``
    is their period in steps (0: they are not periodic).
    """

    steps: tuple[int, ...]
    share: float
    part: StepPart
    part_s: float
    begins: int = 0
    every: int = 0


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The anatomy of the steps of one launch of a user's training. Times are in seconds.

    ``parts_s`` are the means of each part over steps and ranks. ``in_turn_s`` is the mean time for
    which a rank waits in a step for a rank that is not always the same (None: unknown, because no
    collective of gradients was seen, or a GPU computes). ``first_loss`` is the mean loss of the
    ranks in the first recorded step (None: no loss was seen). ``begun`` is the mean number of
    passes over loaders that begin in a step.
    """

    median_s: float
    worst_s: float
    parts_s: dict[StepPart, float]
    slow: SlowSteps | None = None
    in_turn_s: float | None = None
    first_loss: float | None = None
    begun: float = 0.0
