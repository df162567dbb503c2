"""Tilts: what differed between the arms of a contrast, beside what is compared.

Load has a direction: what others took from the subject can only have lowered its speed, what they
took from the baseline only raised the ratio. So a ratio lies between what it would be with only the
baseline given back all that it can have lost, and with only the subject; a verdict stands if it
stands at both ends. A lower clock that hit one arm more than the other has moved their ratio, and a
stall that comes every so many steps may lie beyond the windows of one of them. The same is
asked where like launches differ by more than the declared noise, and where one launch of an arm
drifts as none of its others does: by as much, either way.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.judging import load, neighbours
from harness.analysis.judging.evidence import ContrastData
from harness.analysis.judging.pairs import like_launches_sd
from harness.analysis.samples import steadiness
from harness.cases import metrics
from harness.host import admission
from harness.record import LaunchRecord, Reason


@dataclass(frozen=True, kw_only=True)
class Bias:
    """Without it the metric could be its value times ``factor``."""

    factor: float
    why: str
    reason: Reason = Reason.NOISY_HOST


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """One side of a contrast: its timed launches, and its pilots."""

    timed: Sequence[LaunchRecord]
    pilots: Sequence[LaunchRecord]


def tilts(evidence: ContrastData) -> tuple[Bias, ...]:
    """Everything that favoured one arm; of bytes and memory nothing does."""
    contrast = evidence.contrast
    metric = metrics.metric(contrast.metric)
    if not metric.of_time or metric.profiled:
        return ()
    subject = _arm(evidence, (contrast.subject,))
    below = _arm(evidence, contrast.baseline) if contrast.baseline else None
    return (
        *_loaded(evidence, subject, below),
        *_uneven(subject, below, more_is_better=metric.more_is_better),
        *_scattered(evidence),
        *(tilt for arm in (subject, below) if arm for tilt in _drifting(arm.timed)),
        *_neighbours(evidence, more_is_better=metric.more_is_better),
    )


def _uneven(subject: _Arm, below: _Arm | None, *, more_is_better: bool) -> Iterator[Bias]:
    """Clocks and stalls that hit one arm more than the other."""
    highest = max(_clocks(subject) + (_clocks(below) if below else []), default=0.0)
    for what, lost, compared in _SOURCES:
        of_subject = lost(subject, highest)
        theirs = lost(below, highest) if below else 0.0
        if of_subject is None or theirs is None or abs(of_subject - theirs) <= load.LEAST_LOAD:
            continue
        faster = (1 - theirs) / (1 - of_subject)  # the subject, if neither had lost anything
        factor = faster if compared else 1 / faster
        sides = f"{of_subject:.0%} of the subject's time"
        if below:
            sides += f" and {theirs:.0%} of the baseline's"
        yield Bias(factor=factor if more_is_better else 1 / factor, why=f"{what} {sides}")


def _scattered(evidence: ContrastData) -> Iterator[Bias]:
    """Like launches that differ by more than the declared noise: by as much, either way."""
    spread = like_launches_sd(evidence.all_launches)
    if spread is None or spread <= admission.LAUNCH_SD:
        return
    reason = (
        f"launches of one arm in one block differ by {spread:.0%} (A/A); use quiet cores,"
        " fixed clocks or another machine"
    )
    yield Bias(factor=1 / (1 + spread), why=reason)
    yield Bias(factor=1 + spread, why=reason)


def _neighbours(evidence: ContrastData, *, more_is_better: bool) -> Iterator[Bias]:
    """Estimates what worlds that ran at the same time may have taken from the baseline."""
    if share := neighbours.lost(evidence.run, evidence.plan, evidence.contrast):
        factor = 1 - share if more_is_better else 1 / (1 - share)
        reason = f"worlds beside it may have taken {share:.1%} of the baseline's speed"
        yield Bias(factor=factor, why=reason, reason=Reason.NEIGHBOURS)


def _arm(evidence: ContrastData, names: Sequence[str]) -> _Arm:
    return _Arm(timed=evidence.timed_of(names), pilots=evidence.pilots_of(names))


def _loaded(evidence: ContrastData, subject: _Arm, below: _Arm | None) -> Iterator[Bias]:
    """Both ends of what the ratio could be without others: only one arm gets back what it lost."""
    more = metrics.metric(evidence.contrast.metric).more_is_better
    quota = not evidence.slowed_on_purpose  # of stragglers it is what is measured
    beside = any(load.around(arm.timed) for arm in (subject, below) if arm)
    for arm, whose, slowed in ((subject, "the subject", 1), (below, "the baseline", -1)):
        share = load.lost(arm.timed, evidence.run, beside=beside, quota=quota) if arm else None
        if share is not None and share > load.LEAST_LOAD:
            faster = (1 - share) ** -slowed
            reason = (
                f"others, or a CPU quota, may have taken {share:.0%} of {whose}'s time (top -d 1)"
            )
            yield Bias(factor=faster if more else 1 / faster, why=reason)


def _drifting(launches: Sequence[LaunchRecord]) -> list[Bias]:
    """The tilts of an arm in which one launch drifts as no other does.

    Its mean is off by half of the drift if it had settled by the end of its window, and by all of
    it if it went on as far again; a worst pair is off as far as that launch.
    """
    windows = [launch.steadiness for launch in launches if launch.steadiness]
    if (odd := steadiness.outlier(windows)) is None:
        return []
    off = math.exp(windows[odd].drift)
    name = [launch for launch in launches if launch.steadiness][odd].launch
    reason = f"{name} was not steady: its steps drift by {off - 1:+.1%}"
    return [Bias(factor=factor, why=reason, reason=Reason.NOT_STEADY) for factor in (1 / off, off)]


def _clocks(arm: _Arm) -> list[float]:
    """The devices' clocks in the middle of each launch, MHz."""
    ranges = (gpu.sm_clock_mhz for launch in arm.timed for gpu in launch.gpus)
    return [sum(r) / len(r) for r in ranges if r]


def _slowed(arm: _Arm, highest: float) -> float | None:
    """By how much the devices' clocks were below the highest of both arms."""
    clocks = _clocks(arm)
    return 1 - fmean(clocks) / highest if clocks else None


def _hidden(arm: _Arm, _: float) -> float | None:
    """Share of time that the pilots' stalls took and those of the timed windows did not."""
    far, near = (
        [launch.stalls.share for launch in launches if launch.stalls is not None]
        for launches in (arm.pilots, arm.timed)
    )
    return max(0.0, fmean(far) - fmean(near)) if far and near else None


#: What took time, the share of an arm's that it took, and whether the windows have seen it.
_SOURCES: Sequence[tuple[str, Callable[[_Arm, float], float | None], bool]] = (
    ("lower clocks took", _slowed, True),
    ("stalls that the timed windows do not hold would take", _hidden, False),
)
