"""Work: whether a baseline computes more for a sample than the subject does.

A model that looks for signs that it is alone, and then computes more, makes every rung look better.
What it looks at does not matter here: the CPU time of a sample shows it. In weak scaling a rank of
the subject does all that the baseline does for a sample, and exchanges gradients on top.
"""

from harness.analysis.judging.evidence import Evidence
from harness.cases import Device, Mode, StandIn, metrics
from harness.record import HALVES_SINCE, Expected, LaunchRecord

#: Bytes that AdamW moves for a parameter, and those that slow memory moves in a second.
ADAMW_BYTES = 28
MEMORY_BYTES = {Device.CPU: 5e9, Device.CUDA: 1e12}
#: How many times the subject's CPU time of a sample a baseline's may be. Honest ones of the
#: shipped suites took 0.2 to 1.2 times as much, on quiet cores and beside 25 other programs.
MOST = 1.5
#: Launches of an arm, of which the one that was disturbed least counts.
LEAST_LAUNCHES = 2


def excess(evidence: Evidence) -> str:
    """By how much the baseline works more for a sample, on ranks that compute on cores and hold all
    layers; else empty. Records from before this was asked say nothing.
    """
    case = evidence.subject
    measured = metrics.metric(evidence.contrast.metric)
    weak = case.mode is Mode.WEAK and evidence.contrast.against in ("plain", "wrapped")
    if not (weak and measured.read == "throughput" and case.device is Device.CPU):
        return ""
    described = evidence.run.described[case.hash]
    expected, facts = described.expected, described.facts
    if expected is None or facts is None or evidence.run.schema < HALVES_SINCE:
        return ""
    if case.script or StandIn.PACED in case.stand_in or _cut(expected):
        return ""
    subject_s = _cpu_s(evidence.timed_of([evidence.contrast.subject]))
    theirs = _cpu_s(evidence.timed_of(evidence.contrast.baseline))
    if subject_s is None or theirs is None:
        return ""
    below = evidence.timed_of(evidence.contrast.baseline)
    samples = min(x.consumed / x.steps.count for x in below if x.steps and x.consumed)
    update_s = ADAMW_BYTES * facts.num_params / MEMORY_BYTES[case.device] / samples
    if theirs - min(update_s, theirs / 2) <= MOST * subject_s:  # ranks may share out the optimizer
        return ""
    return (
        f"the baseline takes {theirs / subject_s:.2f} times the subject's CPU time for a sample: it"
        " does more than the same training"
    )


def _cut(expected: Expected) -> bool:
    """Whether ranks hold parts of the weights or layers, and so do less than the baseline."""
    return expected.stages > 1 or any("Shard" in placed for placed in expected.placements)


def _cpu_s(launches: list[LaunchRecord]) -> float | None:
    """CPU seconds of all ranks for a sample, in the launch that took least."""
    per_sample = [
        sum(rank.cpu_s for rank in x.ranks) / x.consumed
        for x in launches
        if x.usable and x.consumed and x.ranks
    ]
    return min(per_sample) if len(per_sample) >= LEAST_LAUNCHES and min(per_sample) > 0 else None
