"""Caveats: why a decided verdict does not stand, for example on a noisy host."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from harness.analysis.judging import biases, blockers
from harness.analysis.judging.contrast_data import ContrastData
from harness.analysis.judging.question import Caveat, undecided
from harness.analysis.samples import references, steadiness
from harness.analysis.samples.figures import SMOOTH
from harness.cases import metrics
from harness.host.admission import Level
from harness.record import Described, LaunchRecord, Reason, RunRecord

#: Profiled steps longer than this by factor are another program's: no attribution.
PERTURBED = 1.05


def find_doubt(evidence: ContrastData) -> Caveat | None:
    """Why neither PASS nor FAIL of this contrast may stand; bytes and memory have no doubts.

    Load by others is none: how far, and where to, it can have moved a ratio is known (``tilts``).
    Shares of a step have no such direction.
    """
    metric = metrics.metric(evidence.contrast.metric)
    if not metric.of_time:
        return None
    if metric.profiled and (reason := _perturbed(evidence)):
        return undecided(Reason.PERTURBED, reason)
    if (unfit := unfit_host(evidence.run, known=_load_known(evidence))) is not None:
        return unfit
    without_direction = unquiet(evidence) if metric.profiled else ""
    if reason := _slowed(evidence.all_launches) or without_direction:
        return undecided(Reason.NOISY_HOST, f"noisy host: {reason}")
    if reason := _unsteady(evidence):
        return undecided(Reason.NOT_STEADY, reason)
    return None


def spoilt(evidence: ContrastData) -> Caveat | None:
    """Why a figure is no reference for others: a doubt, or load whichever way it points."""
    if (reason := find_doubt(evidence)) is not None or not metrics.metric(
        evidence.contrast.metric
    ).of_time:
        return reason
    if (unfit := unfit_host(evidence.run)) is not None:
        return unfit
    if load_seen := unquiet(evidence):
        return undecided(Reason.NOISY_HOST, f"noisy host: {load_seen}")
    return None


def unfit_host(run: RunRecord, *, known: bool = False) -> Caveat | None:
    """Whether the host was found unfit before the run.

    Load from before it counts only where launches do not know their own.
    """
    bad = [finding for finding in run.admission if finding.level is Level.BAD]
    bad = [finding for finding in bad if not (known and finding.check == "load")]
    if not bad:
        return None
    reason = f"noisy host: {'; '.join(finding.text for finding in bad)}"
    return undecided(Reason.NOISY_HOST, reason)


def unquiet(evidence: ContrastData) -> str:
    """Describes the load that others put on an arm, where figures of it should be read with care;
    else empty.

    Bytes and memory are what they are beside anyone; quotas that are planted are no others' matter.
    """
    if evidence.slowed_on_purpose or not metrics.metric(evidence.contrast.metric).of_time:
        return ""
    for arm in evidence.arms:
        launches = [launch for launch in evidence.all_launches if launch.case == arm.case.hash]
        if reason := biases.sentence(launches, arm.name):
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


#: The mean loss of the last steps scatters by some hundredths around the entropy of the data.
BELOW_NATS = 0.1


def claimed(evidence: ContrastData) -> str:
    """The first thing that the metric rests on and nothing vouches for; empty if there is none."""
    return next(_claims(evidence), "")


def _claims(evidence: ContrastData) -> Iterator[str]:
    if reason := blockers.misnamed(evidence.plan, evidence.contrast):
        yield reason
    if evidence.subject.script:
        yield from _of_script(evidence)
    described = evidence.run.described[evidence.subject.hash]
    if metrics.metric(evidence.contrast.metric).of_schedule and described.own_ideal:
        yield "the ideal efficiency is its own files' claim"
    if described.excuses:
        claims = ", ".join(described.excuses)
        yield f"its own files excuse it from the comparison with a reference ({claims})"
    if described.theirs:
        yield from _of_files(evidence, described)
        yield from _of_floor(evidence, described)


def _of_script(evidence: ContrastData) -> Iterator[str]:
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    watched = [launch.ranks[0].watched for launch in launches if launch.usable and launch.ranks]
    if any(w is not None and not w.even for w in watched):
        yield "steps do not exchange equally many bytes: what a step is, has one witness"
    if any(w is not None and len(w.roots) != 1 for w in watched):
        yield "its samples are as declared, not counted"


def _of_files(evidence: ContrastData, described: Described) -> Iterator[str]:
    """Says what a user's file may have stated of itself, or of a model that is not its own."""
    run = evidence.run
    case = evidence.subject
    trained = references.launch_of(run.references, run.described, case.hash)
    if trained is not None and trained.cause is not None and trained.cause.kind == "memory":
        yield "its reference ended for want of memory: none of its losses were compared"
    if metrics.metric(evidence.contrast.metric).read == "peak_bytes" and _brings_files(evidence):
        yield "how much its baseline holds is up to its own files"
    if "strategies" in described.theirs and (reason := biases.excess(evidence, if_cut=True)):
        yield f"{reason}, and only its own file says that ranks hold parts"


def _brings_files(evidence: ContrastData) -> bool:
    """Whether a baseline trains with files of the user's that are told the world's size."""
    described = evidence.run.described
    baseline = [evidence.plan.arm(name).case.hash for name in evidence.contrast.baseline]
    return any(
        set(described[hash_].theirs) - {"models"} for hash_ in baseline if hash_ in described
    )


def _of_floor(evidence: ContrastData, described: Described) -> Iterator[str]:
    """No training ends below the entropy of its data, and a target that is met before anything was
    trained is none.
    """
    floor = described.facts.loss_floor if described.facts else None
    if floor is None or not metrics.metric(evidence.contrast.metric).read.startswith("reached."):
        return
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    steps = [launch.reached.steps for launch in launches if launch.reached is not None]
    if steps and max(steps) <= SMOOTH:
        yield "its target was met before anything was trained"
    losses = [launch.final_loss for launch in launches if launch.final_loss is not None]
    if losses and min(losses) < floor - BELOW_NATS:
        yield f"its model states a least loss of {floor:.3g}, and it ends at {min(losses):.3g}"
