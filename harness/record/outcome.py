"""The results of a run: verdicts, their statuses and reasons, and points of scaling sweeps."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from harness.base.errors import Exit


class Status(StrEnum):
    """The seven statuses of a verdict. Finer distinctions are Reasons."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    RECORDED = "RECORDED"
    NOT_COMPARABLE = "NOT COMPARABLE"
    ERROR = "ERROR"
    SKIP = "SKIP"


#: All statuses, ordered from the worst to the best. Tables use this order.
SEVERITY = (
    Status.ERROR,
    Status.FAIL,
    Status.INCONCLUSIVE,
    Status.NOT_COMPARABLE,
    Status.PASS,
    Status.RECORDED,
    Status.SKIP,
)


class Reason(StrEnum):
    """The reason for the status of a verdict."""

    MET = "met"
    NOT_MET = "not_met"
    SPANS_BOUND = "spans_bound"
    TOO_FEW_PAIRS = "too_few_pairs"
    TOO_CLOSE = "too_close"
    TREND = "trend"
    NEIGHBOURS = "neighbours"
    PAIRS_SPLIT = "pairs_split"  # only in records until schema 5
    NOT_STEADY = "not_steady"
    NOISY_HOST = "noisy_host"
    PERTURBED = "perturbed"
    DISAGREE = "disagree"
    UNCONFIRMED = "unconfirmed"
    OUT_OF_TIME = "out_of_time"
    NO_RULE = "no_rule"
    PROVISIONAL = "provisional"
    WOULD_FAIL = "would_fail"
    NOT_COMPARABLE = "not_comparable"
    WAIVED = "waived"
    UNEXPECTED_PASS = "unexpected_pass"
    IMPLAUSIBLE = "implausible"
    INCORRECT = "incorrect"
    WRONG_BYTES = "wrong_bytes"
    WRONG_WORLD = "wrong_world"
    LAUNCH_FAILED = "launch_failed"
    CAUGHT = "caught"
    NOT_CAUGHT = "not_caught"
    NOT_MEASURED = "not_measured"
    CHECKED = "checked"
    INTERRUPTED = "interrupted"
    UNSUPPORTED = "unsupported"
    DOES_NOT_FIT = "does_not_fit"
    CLIMB_STOPPED = "climb_stopped"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One judged contrast: its value with an interval, and the bound to which it was compared.

    A contrast is the ratio of a metric between two arms. It is measured in pairs of launches.
    ``value``, ``low`` and ``high`` are in the metric's unit; None means not measured. The interval
    is the one that was judged: each of its ends is wrong with a probability of at most 5 %, over
    all evaluations together. ``widened`` says in one word why the interval was widened (``load``:
    by the effect that other processes can have had in one direction; empty: it was not widened).
    ``evidence`` is the e-value for a PASS or FAIL. ``mde`` is the smallest relative change of the
    value that this run would have detected with 90 % power (0.02 = 2 %).

    ``pairs`` has the value of each pair, and ``again`` has the values of the pairs of the
    confirming set. ``p95`` is the value computed from the 95th percentiles of step times, and
    ``worst`` is the value of the worst pair. ``sd`` is the standard deviation of the pairs, and
    ``lag1`` is their autocorrelation at lag 1 in the order of measurement. A high ``lag1`` is a
    hint that the noise lasts longer than a pair. ``launches`` names every launch behind the
    verdict. ``more`` is the number of further pairs that would decide an open verdict if they
    scatter like the measured ones; None if no number would. ``doubt`` is a caveat.

    A FAIL that is ``waived`` stays FAIL in every table but does not fail the run. A verdict is
    ``simulated`` if it was measured on simulated hardware in a run that requested real devices. It
    is shown and decides nothing.
    """

    contrast: str
    case: str
    case_hash: str
    plan: str
    metric: str
    against: str
    rule: str | None
    bound: str
    status: Status
    reason: Reason
    detail: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    mde: float | None
    pairs: tuple[float, ...]
    launches: tuple[str, ...]
    evidence: float | None = None
    p95: float | None = None
    worst: float | None = None
    sd: float | None = None
    lag1: float | None = None
    again: tuple[float, ...] = ()
    waived: bool = False
    doubt: str = ""
    more: int | None = None
    simulated: bool = False
    widened: str = ""

    @property
    def counts(self) -> Status:
        """The status that contributes to the exit status.

        It is RECORDED for a waived FAIL, for a control whose known effect was detected (which is no
        evidence that anything scales), and for a verdict on simulated hardware in a run that
        requested real devices. It is SKIP for an inconclusive verdict without a threshold, because
        only a value is missing.
        """
        if self.simulated:
            return Status.RECORDED
        if self.rule is None and self.status is Status.INCONCLUSIVE:
            return Status.SKIP
        waived = self.waived and self.status is Status.FAIL
        return Status.RECORDED if waived or self.reason is Reason.CAUGHT else self.status


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One world size of a scaling sweep relative to one baseline, with intervals.

    ``throughput`` T is in samples/s over the whole world. ``speedup`` S is T / T_baseline, and
    ``efficiency`` is S / (N / N_baseline), where N is the number of ranks. ``karp_flatt`` is
    (1/S - 1/N) / (1 - 1/N), the experimentally determined serial fraction under strong scaling
    (Karp and Flatt, CACM 33(5), 1990). ``p95`` is the efficiency computed from the 95th percentiles
    of step times, and ``worst`` is the efficiency of the worst pair.
    """

    case: str
    world_size: int
    against: str
    n: int
    throughput: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    p95: float | None
    worst: float
    karp_flatt: float | None


def exit_status(
    statuses: Collection[Status], *, inconclusive_fails: bool = True, require_verdict: bool = True
) -> Exit:
    """Combine statuses into one exit status: that of the worst one.

    ERROR overrides FAIL, FAIL overrides INCONCLUSIVE, and INCONCLUSIVE overrides NOT COMPARABLE.
    RECORDED and SKIP judge nothing. If there are only these, the exit status is NOTHING_JUDGED, or
    PASSED if something was RECORDED and ``require_verdict`` is False. If ``inconclusive_fails`` is
    False, INCONCLUSIVE judges nothing either.
    """
    if Status.ERROR in statuses:
        return Exit.ERROR
    if Status.FAIL in statuses:
        return Exit.FAILED
    if Status.INCONCLUSIVE in statuses and inconclusive_fails:
        return Exit.INCONCLUSIVE
    if Status.NOT_COMPARABLE in statuses:
        return Exit.NOT_COMPARABLE
    if Status.PASS in statuses or (Status.RECORDED in statuses and not require_verdict):
        return Exit.PASSED
    return Exit.NOTHING_JUDGED
