"""A training that faults interrupt, as its ranks marked it: goodput and its terms follow."""

from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """What has just ended on rank 0."""

    READY = "ready"  # the process group and the model are there
    LOADED = "loaded"
    STEP = "step"
    SAVED = "saved"


@dataclass(frozen=True, kw_only=True)
class Sitting:
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
class Played:
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
    sittings: tuple[Sitting, ...]
