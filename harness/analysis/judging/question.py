"""A question to the judge: the values, blockers, caveats and biases of one contrast."""

from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis.judging.biases import Bias
from harness.record import Reason, Status


class Conclusion(NamedTuple):
    """A status and why."""

    status: Status
    reason: Reason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """One metric of one thing, with its evidence.

    ``first`` are the values that are judged, ``again`` those of the fresh set that confirms a FAIL,
    ``p95`` the first values on the 95th percentile of steps, ``horizon`` the most first values that
    there may be in the end. ``perfect`` is the value of perfect scaling, which a true value hardly
    exceeds; ``gain`` is the factor that a sharded optimizer may add to it. ``impossible`` says what
    else cannot be true.

    An ``obstacle`` keeps the Question from being judged at all. With a ``doubt`` neither PASS nor
    FAIL stands, nor does one that one of the ``tilts`` could have made. ``unquiet`` says what other
    programs took meanwhile, for readers of a figure that no rule judges. ``claimed`` is what only
    the user's file says and nothing checks: a PASS then becomes RECORDED.
    ``place`` says which arm kept its place where there are others: a PASS or FAIL holds for that
    one.
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
    tilts: tuple[Bias, ...] = ()
    unquiet: str = ""
    claimed: str = ""
    place: str = ""
    perfect: float | None = None
    gain: float = 1.0
    impossible: str = ""
