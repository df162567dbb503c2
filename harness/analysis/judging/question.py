"""A question to the judge: the values of one contrast, and the caveats that affect its verdict."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from harness.record import Reason, Status


class Severity(StrEnum):
    """The effect of a caveat on the verdict, strongest first."""

    #: The contrast is not judged: the caveat's status and code are its verdict.
    BLOCKS = "blocks"
    #: The value cannot be true, so the verdict is ERROR.
    IMPOSSIBLE = "impossible"
    #: Neither a PASS nor a FAIL is accepted.
    UNDECIDES = "undecides"
    #: A FAIL is not accepted, and a PASS only if worse values could not have caused it.
    WORSENS = "worsens"
    #: A PASS or FAIL is accepted only if it also results from the values times ``shift``.
    BIASES = "biases"
    #: A PASS rests on a claim that nothing verifies, so it becomes RECORDED.
    CLAIMS = "claims"
    #: A PASS or FAIL applies to one placement of the ranks only, and its detail says so.
    LIMITS = "limits"
    #: The verdict is not affected; the sentence is for readers of the value.
    NOTES = "notes"


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """A reason to read a value or a verdict with care.

    ``code`` is one word for programs. It is a ``Reason`` if the caveat can become the reason of a
    verdict. ``shift`` is the factor by which a bias may have changed the value. ``status`` is the
    verdict's status if the caveat decides it.
    """

    code: str
    severity: Severity
    sentence: str
    shift: float = 1.0
    status: Status = Status.INCONCLUSIVE

    @property
    def reason(self) -> Reason:
        """Return the reason of a verdict that this caveat decides."""
        return Reason(self.code)


def blocker(status: Status, reason: Reason, sentence: str) -> Caveat:
    """Return a caveat that prevents a contrast from being judged."""
    return Caveat(code=reason, severity=Severity.BLOCKS, sentence=sentence, status=status)


def undecided(reason: Reason, sentence: str) -> Caveat:
    """Return a caveat under which neither a PASS nor a FAIL is accepted."""
    return Caveat(code=reason, severity=Severity.UNDECIDES, sentence=sentence)


def bias(shift: float, sentence: str, reason: Reason = Reason.NOISY_HOST) -> Caveat:
    """Return a bias; if it had not occurred, the value might be ``shift`` times as large."""
    return Caveat(code=reason, severity=Severity.BIASES, sentence=sentence, shift=shift)


class Conclusion(NamedTuple):
    """The judge's answer: a status, its reason, and a sentence."""

    status: Status
    reason: Reason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """One metric of one case against one baseline, with everything that affects its verdict.

    ``first`` holds the values that are judged, and ``again`` the values of the fresh set of
    launches that confirms a FAIL. ``p95`` holds the values of the same launches as ``first``,
    computed from the 95th percentile of steps. ``horizon`` is the largest number of first values
    that the protocol allows. ``perfect`` is the value under perfect scaling, and ``gain`` is the
    factor by which a sharded optimizer may increase it. A value that exceeds their product by more
    than the tolerance is impossible.
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
    caveats: tuple[Caveat, ...] = ()
    perfect: float | None = None
    gain: float = 1.0

    def caveats_of(self, severity: Severity) -> Iterator[Caveat]:
        """Yield the question's caveats of one severity."""
        return (caveat for caveat in self.caveats if caveat.severity is severity)

    def caveat(self, severity: Severity) -> Caveat | None:
        """Return the question's first caveat of one severity, or None."""
        return next(self.caveats_of(severity), None)
