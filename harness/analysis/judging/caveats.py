"""Caveats: reasons why a PASS or FAIL is not accepted, for example a noisy host."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from harness.analysis.judging import biases, blockers
from harness.analysis.judging.contrast_data import ContrastData
from harness.analysis.judging.question import Caveat, Severity, undecided
from harness.analysis.samples import references, steadiness
from harness.analysis.samples.figures import SMOOTH
from harness.cases import metrics
from harness.host.admission import Level
from harness.record import Described, LaunchRecord, Reason, RunRecord

#: Largest factor by which the profiler may lengthen steps. If the factor is larger, shares of
#: profiled steps do not describe the unprofiled training.
PERTURBED = 1.05
#: A model keeps a schedule if its steps take less than this fraction of their usual time after a
#: pause. Clock rates that recover during a pause shorten steps less.
AFTER_PAUSE = 0.8


def find_doubt(evidence: ContrastData) -> Caveat | None:
    """Return why neither a PASS nor a FAIL of this contrast is accepted, or None.

    Verdicts on bytes and memory are always accepted. Background load does not prevent a verdict on
    a ratio, because the size and direction of its effect are known (``biases``). It prevents a
    verdict on a share of a step, because its effect on the share is unknown.
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
    """Return why a value cannot become a reference for later runs, or None.

    In addition to the reasons of ``find_doubt``, any background load prevents it.
    """
    if (reason := find_doubt(evidence)) is not None or not metrics.metric(
        evidence.contrast.metric
    ).of_time:
        return reason
    if (unfit := unfit_host(evidence.run)) is not None:
        return unfit
    if load_seen := unquiet(evidence):
        return undecided(Reason.NOISY_HOST, f"noisy host: {load_seen}")
    return None


def unfit_host(run: RunRecord, *, known: bool = False, directed: bool = False) -> Caveat | None:
    """Return a caveat if admission found the host unfit before the run, else None.

    ``known`` says that the launches recorded their background load. The load that admission
    measured before the run is ignored in this case. ``directed`` says that load can only have made
    the values worse.
    """
    bad = [finding for finding in run.admission if finding.level is Level.BAD]
    bad = [finding for finding in bad if not (known and finding.check == "load")]
    if not bad:
        return None
    reason = f"noisy host: {'; '.join(finding.text for finding in bad)}"
    caveat = undecided(Reason.NOISY_HOST, reason)
    loaded = all(finding.check == "load" for finding in bad)
    return replace(caveat, severity=Severity.WORSENS) if directed and loaded else caveat


def unquiet(evidence: ContrastData) -> str:
    """Return a sentence on the background load of an arm, or an empty string if it is irrelevant.

    Load does not change bytes and memory. The CPU quota of an injected straggler is not background
    load.
    """
    if evidence.slowed_on_purpose or not metrics.metric(evidence.contrast.metric).of_time:
        return ""
    for arm in evidence.arms:
        launches = [launch for launch in evidence.all_launches if launch.case == arm.case.hash]
        if reason := biases.sentence(launches, arm.name):
            return f"{reason}; find them (top -d 1) and run again"
    return ""


def _load_known(evidence: ContrastData) -> bool:
    """Return whether every launch recorded its background load."""
    return all(launch.foreign_load is not None for launch in evidence.launches)


def _slowed(launches: Sequence[LaunchRecord]) -> str:
    """Return why GPUs lowered their clocks (temperature or hardware), or an empty string."""
    reasons = {reason for launch in launches for gpu in launch.gpus for reason in gpu.throttle}
    slowed = sorted(r for r in reasons if "thermal" in r or "hw_" in r)
    return f"devices were slowed ({', '.join(slowed)})" if slowed else ""


def _unsteady(evidence: ContrastData) -> str:
    """Return a sentence on the first arm whose launches all drift, or an empty string."""
    for arm in sorted(evidence.arms, key=lambda arm: arm.name):
        windows = [
            launch.steadiness for launch in evidence.timed_of([arm.name]) if launch.steadiness
        ]
        if steadiness.drifts(windows):
            drift = math.expm1(fmean(window.drift for window in windows))
            return f"{arm.case.id} is not steady: every launch drifts, by {drift:+.1%} on average"
    return ""


def _perturbed(evidence: ContrastData) -> str:
    """Return a sentence if the profiler lengthened steps too much, or an empty string."""
    factors = [
        launch.changed for launch in evidence.launches if launch.arm == evidence.contrast.subject
    ]
    if not factors or median(factors) <= PERTURBED:
        return ""
    return (
        f"profiled steps take {median(factors):.2f}x as long as unprofiled steps (limit"
        f" {PERTURBED}): use longer steps (a larger model or batch), or judge communication_cost"
    )


#: Nats by which a final loss may lie below the stated floor. The mean loss of the last steps
#: scatters around the entropy of the data by some hundredths of a nat.
BELOW_NATS = 0.1


def claimed(evidence: ContrastData) -> str:
    """Return the first unverified claim that the metric relies on, or an empty string."""
    return next(_claims(evidence), "")


def _claims(evidence: ContrastData) -> Iterator[str]:
    if reason := blockers.misnamed(evidence.plan, evidence.contrast):
        yield reason
    if evidence.subject.script:
        yield from _of_script(evidence)
    described = evidence.run.described[evidence.subject.hash]
    if metrics.metric(evidence.contrast.metric).of_schedule and described.own_ideal:
        yield "the ideal efficiency is stated by the user's files"
    if described.excuses:
        claims = ", ".join(described.excuses)
        yield f"the user's files exclude this case from the comparison with a reference ({claims})"
    if described.theirs:
        yield from _of_files(evidence, described)
        yield from _of_floor(evidence, described)


def _of_script(evidence: ContrastData) -> Iterator[str]:
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    watched = [launch.ranks[0].watched for launch in launches if launch.usable and launch.ranks]
    if any(w is not None and not w.even for w in watched):
        yield "steps exchange different numbers of bytes, so only one observer counts the steps"
    if any(w is not None and len(w.roots) != 1 for w in watched):
        yield "the user declared the number of samples, and the harness did not count them"


def _of_files(evidence: ContrastData, described: Described) -> Iterator[str]:
    """Yield the unverified claims of a user's files that the metric relies on."""
    run = evidence.run
    case = evidence.subject
    trained = references.launch_of(run.references, run.described, case.hash)
    if trained is not None and trained.cause is not None and trained.cause.kind == "memory":
        yield "its reference ran out of memory, so none of its losses were compared"
    if reason := _keeps_schedule(evidence):
        yield reason
    if metrics.metric(evidence.contrast.metric).read == "peak_bytes" and _brings_files(evidence):
        yield "the user's files decide how much memory its baseline uses"
    if "strategies" in described.theirs and (reason := biases.excess(evidence, if_cut=True)):
        yield f"{reason}, and only the user's file says that ranks hold parts of the model"


def _keeps_schedule(evidence: ContrastData) -> str:
    """Return a sentence if steps with a user's files are faster after a pause, or an empty string.

    A file that waits until a certain time has passed since its last step hides the communication
    in that time. Its wait ends during a pause. Computation takes at least as long after a pause.
    """
    faster: list[float] = []
    launches = [launch for launch in evidence.all_launches if launch.usable]
    for launch in launches:
        probes = [rank.probe for rank in launch.ranks if rank.probe and rank.probe.paused_s]
        if probes:
            steps_s = [max(times) for times in zip(*(p.steps_s for p in probes), strict=True)]
            paused_s = [max(times) for times in zip(*(p.paused_s for p in probes), strict=True)]
            faster.append(median(paused_s) / min(steps_s))
    if not faster or median(faster) > AFTER_PAUSE:
        return ""
    less = 1 - median(faster)
    return (
        f"steps with the user's files take {less:.0%} less time after a pause: one of them keeps a"
        " schedule, which hides the time between its passes"
    )


def _brings_files(evidence: ContrastData) -> bool:
    """Return whether a baseline uses a user's file, other than a model.

    Such files know the world size, so they may behave differently in the baseline.
    """
    described = evidence.run.described
    baseline = [evidence.plan.arm(name).case.hash for name in evidence.contrast.baseline]
    return any(
        set(described[hash_].theirs) - {"models"} for hash_ in baseline if hash_ in described
    )


def _of_floor(evidence: ContrastData, described: Described) -> Iterator[str]:
    """Yield each contradiction between the measured losses and a user's model's loss floor.

    A final loss below the floor is impossible, because the floor is the entropy of the data. The
    target loss is computed from the floor. If the first losses already meet the target, the stated
    floor is too high.
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
        yield f"its model states a loss floor of {floor:.3g}, but a final loss is {min(losses):.3g}"
