"""Doubts: why a decided contrast may not stand. A noisy host, or launches that were not steady."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from harness.analysis.judging import load
from harness.analysis.judging.evidence import ContrastData
from harness.analysis.judging.question import Conclusion
from harness.analysis.samples import steadiness
from harness.cases import metrics
from harness.host.admission import Level
from harness.record import LaunchRecord, Reason, RunRecord, Status

#: Profiled steps longer than this by factor are another program's: no attribution.
PERTURBED = 1.05


def doubt(evidence: ContrastData) -> Conclusion | None:
    """Why neither PASS nor FAIL of this contrast may stand; bytes and memory have no doubts.

    Load by others is none: how far, and where to, it can have moved a ratio is known (``tilts``).
    Shares of a step have no such direction.
    """
    metric = metrics.metric(evidence.contrast.metric)
    if not metric.of_time:
        return None
    if metric.profiled and (reason := _perturbed(evidence)):
        return Conclusion(Status.INCONCLUSIVE, Reason.PERTURBED, reason)
    if (unfit := unfit_host(evidence.run, known=_load_known(evidence))) is not None:
        return unfit
    without_direction = unquiet(evidence) if metric.profiled else ""
    if reason := _slowed(evidence.all_launches) or without_direction:
        return Conclusion(Status.INCONCLUSIVE, Reason.NOISY_HOST, f"noisy host: {reason}")
    if reason := _unsteady(evidence):
        return Conclusion(Status.INCONCLUSIVE, Reason.NOT_STEADY, reason)
    return None


def spoilt(evidence: ContrastData) -> Conclusion | None:
    """Why a figure is no reference for others: a doubt, or load whichever way it points."""
    if (reason := doubt(evidence)) is not None or not metrics.metric(
        evidence.contrast.metric
    ).of_time:
        return reason
    if (unfit := unfit_host(evidence.run)) is not None:
        return unfit
    if load_seen := unquiet(evidence):
        return Conclusion(Status.INCONCLUSIVE, Reason.NOISY_HOST, f"noisy host: {load_seen}")
    return None


def unfit_host(run: RunRecord, *, known: bool = False) -> Conclusion | None:
    """Whether the host was found unfit before the run.

    Load from before it counts only where launches do not know their own.
    """
    bad = [finding for finding in run.admission if finding.level is Level.BAD]
    bad = [finding for finding in bad if not (known and finding.check == "load")]
    if not bad:
        return None
    reason = f"noisy host: {'; '.join(finding.text for finding in bad)}"
    return Conclusion(Status.INCONCLUSIVE, Reason.NOISY_HOST, reason)


def unquiet(evidence: ContrastData) -> str:
    """Describes the load that others put on an arm, where figures of it should be read with care;
    else empty.

    Bytes and memory are what they are beside anyone; quotas that are planted are no others' matter.
    """
    if evidence.slowed_on_purpose or not metrics.metric(evidence.contrast.metric).of_time:
        return ""
    for arm in evidence.arms:
        launches = [launch for launch in evidence.all_launches if launch.case == arm.case.hash]
        if reason := load.sentence(launches, arm.name):
            return f"{reason}; find them (top -d 1) and run again"
    return ""


def _load_known(evidence: ContrastData) -> bool:
    """Whether every launch says what others used meanwhile."""
    return all(launch.foreign_load is not None for launch in evidence.launches)


def _slowed(launches: Sequence[LaunchRecord]) -> str:
    """Which devices were too hot, or held back by their hardware; empty if none."""
    reasons = {reason for launch in launches for gpu in launch.gpus for reason in gpu.throttle}
    slowed = sorted(r for r in reasons if "thermal" in r or "hw_" in r)
    return f"devices were slowed ({', '.join(slowed)})" if slowed else ""


def _unsteady(evidence: ContrastData) -> str:
    """Which arm was not steady in any of its launches; empty if none."""
    for arm in sorted(evidence.arms, key=lambda arm: arm.name):
        windows = [
            launch.steadiness for launch in evidence.timed_of([arm.name]) if launch.steadiness
        ]
        if steadiness.drifts(windows):
            drift = math.expm1(fmean(window.drift for window in windows))
            return f"{arm.case.id} is not steady: every launch drifts, {drift:+.1%}"
    return ""


def _perturbed(evidence: ContrastData) -> str:
    """Why the profiler changed what it looked at too much for its shares to be judged, if so."""
    factors = [
        launch.changed for launch in evidence.launches if launch.arm == evidence.contrast.subject
    ]
    if not factors or median(factors) <= PERTURBED:
        return ""
    return (
        f"profiled steps take {median(factors):.2f}x as long as unprofiled (limit {PERTURBED}):"
        " use longer steps (a larger model or batch), or judge communication_cost"
    )
