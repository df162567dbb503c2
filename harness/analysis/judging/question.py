"""What is judged, gathered once: a contrast of a plan, a row of a sweep, or a course's trials.

    contrast or series -> Question -> ``conclude`` -> Verdict

Everything right of the arrow reads the Question only, so plans, sweeps and trials have one judge.
"""

from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis.judging.tilts import Tilt
from harness.record import Reason, Status


class Conclusion(NamedTuple):
    """A status and why."""

    status: Status
    reason: Reason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """One metric of one thing, with its evidence.

    ``first`` are the values that are judged, ``again`` those of the fresh set that confirms a
    FAIL, ``p95`` the first ones on 95th percentiles of steps, ``horizon`` how many first ones there
    may be in the end. ``perfect`` is the value of perfect scaling, beyond which little can be true
    (``gain``: what a sharded optimizer may add); ``impossible`` says what else cannot be. An
    ``obstacle`` keeps it from being judged at all; with a ``doubt`` neither PASS nor FAIL stands,
    nor where one of the ``tilts`` could have made it. ``unquiet`` says what others took meanwhile,
    for who reads a figure that no rule judges. ``claimed`` is what it rests on that nobody
    but the user's own file says: then it cannot pass. ``place`` says which arm kept its place where
    there are others: a PASS or FAIL holds for that one. ``halves``: the first look allows for a
    slow half of the launches, as records since ``HALVES_SINCE`` do.
    """

    name: str
    case: str
    metric: str
    against: str
    case_hash: str = ""
    plan: str = ""
    first: tuple[float, ...] = ()
    again: tuple[float, ...] = ()
    p95: tuple[float, ...] = ()
    horizon: int = 0
    launches: tuple[str, ...] = ()
    obstacle: Conclusion | None = None
    doubt: Conclusion | None = None
    tilts: tuple[Tilt, ...] = ()
    unquiet: str = ""
    claimed: str = ""
    place: str = ""
    perfect: float | None = None
    gain: float = 1.0
    impossible: str = ""
    halves: bool = True
