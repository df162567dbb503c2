"""Doubts: why a decided contrast may not stand. A noisy host, or launches that were not steady."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from harness.analysis.judging.evidence import Evidence
from harness.analysis.judging.question import Conclusion
from harness.analysis.samples import steadiness
from harness.cases import metrics
from harness.host import admission
from harness.host.admission import Level
from harness.record import LaunchRecord, Reason, RunRecord, Status

#: Profiled steps longer than this by factor are another program's: no attribution.
PERTURBED = 1.05


def doubt(evidence: Evidence) -> Conclusion | None:
    """Why neither PASS nor FAIL of this contrast may stand; bytes and memory have no doubts."""
    metric = metrics.metric(evidence.contrast.metric)
    if not metric.of_time:
        return None
    if metric.profiled and (why := _perturbed(evidence)):
        return Conclusion(Status.INCONCLUSIVE, Reason.PERTURBED, why)
    if (noisy := unfit_host(evidence.run)) is not None:
        return noisy
    if why := _noise(evidence.all_launches, quotas=not evidence.slowed_on_purpose):
        return Conclusion(Status.INCONCLUSIVE, Reason.NOISY_HOST, f"noisy host: {why}")
    if why := _unsteady(evidence):
        return Conclusion(Status.INCONCLUSIVE, Reason.NOT_STEADY, why)
    return None


def unfit_host(run: RunRecord) -> Conclusion | None:
    """Whether the host was found unfit before the run."""
    bad = [f for f in run.admission if f.level is Level.BAD]
    if not bad:
        return None
    why = f"noisy host: {'; '.join(f.text for f in bad)}"
    return Conclusion(Status.INCONCLUSIVE, Reason.NOISY_HOST, why)


def _noise(launches: Sequence[LaunchRecord], *, quotas: bool) -> str:
    """What the launches themselves say of a noisy host; empty for a quiet one."""
    for arm in dict.fromkeys(x.arm for x in launches):
        mine = [x for x in launches if x.arm == arm]
        loads = [min(x.foreign_load, x.taken or 0.0) for x in mine if x.foreign_load is not None]
        if loads and median(loads) > admission.FOREIGN_LOAD:
            return (
                f"other processes used {median(loads):.0%} of the cores of {arm} (median launch);"
                " find them (top -d 1) and run again"
            )
        held = [r.throttled_s / r.window_s for x in mine for r in x.ranks if r.throttled_s]
        if quotas and held and max(held) > admission.THROTTLED:
            return (
                f"a CPU quota held the ranks of {arm} back for {max(held):.0%} of the time;"
                " use fewer ranks, or raise the quota of this container"
            )
    reasons = {reason for x in launches for gpu in x.gpus for reason in gpu.throttle}
    slowed = sorted(r for r in reasons if "thermal" in r or "hw_" in r)
    return f"devices were slowed ({', '.join(slowed)})" if slowed else ""


def _unsteady(evidence: Evidence) -> str:
    """Which arm was not steady in any of its launches; empty if none."""
    for arm in sorted(evidence.arms, key=lambda arm: arm.name):
        windows = [x.steadiness for x in evidence.timed_of([arm.name]) if x.steadiness]
        if steadiness.drifts(windows):
            drift = math.expm1(fmean(s.drift for s in windows))
            return f"{arm.case.id} is not steady: every launch drifts, {drift:+.1%}"
    return ""


def _perturbed(evidence: Evidence) -> str:
    """Why the profiler changed what it looked at too much for its shares to be judged, if so."""
    factors = [x.changed for x in evidence.launches if x.arm == evidence.contrast.subject]
    if not factors or median(factors) <= PERTURBED:
        return ""
    return (
        f"profiled steps take {median(factors):.2f}x as long as unprofiled (limit {PERTURBED}):"
        " use longer steps (a larger model or batch), or judge communication_cost"
    )
