"""Work: whether a baseline computes more for a sample than the subject does, or waits longer.

A model that looks for signs that it is alone, and then computes more, makes every rung look better.
What it looks at does not matter here: the CPU time of a sample shows it. In weak scaling a rank of
the subject does all that the baseline does for a sample, and exchanges gradients on top.
"""

from collections.abc import Callable

from harness.analysis.judging.evidence import ContrastData
from harness.analysis.samples.figures import idle_s
from harness.cases import Device, Mode, StandIn, metrics
from harness.record import HALVES_SINCE, Expected, LaunchRecord, RankRecord

#: Bytes that AdamW moves for a parameter, and those that slow memory moves in a second.
ADAMW_BYTES = 28
MEMORY_BYTES = {Device.CPU: 5e9, Device.CUDA: 1e12}
#: How many times the subject's CPU time of a sample a baseline's may be. Honest ones of the
#: shipped suites took 0.2 to 1.2 times as much, on quiet cores and beside 25 other programs.
MOST_TIMES = 1.5
#: Launches of an arm, of which the one that was disturbed least counts.
LEAST_LAUNCHES = 2
#: Of a baseline's time for a sample: so much longer than the subject it may wait. Ranks that
#: exchange gradients, and share a disk, wait longer than one alone.
LONGER = 0.2


def excess(evidence: ContrastData, *, if_cut: bool = False) -> str:
    """By how much the baseline works more for a sample, on ranks that compute on cores and hold all
    layers; else empty. Records from before this was asked say nothing. ``if_cut``: of ranks that
    are said to hold parts alone.
    """
    case = evidence.subject
    measured = metrics.metric(evidence.contrast.metric)
    weak = case.mode is Mode.WEAK and evidence.contrast.against in ("plain", "wrapped")
    if not (weak and measured.read == "throughput" and case.device is Device.CPU):
        return ""
    if evidence.run.schema < HALVES_SINCE or StandIn.PACED in case.stand_in:
        return ""
    subject = evidence.timed_of([evidence.contrast.subject])
    baseline = evidence.timed_of(evidence.contrast.baseline)
    described = evidence.run.described[case.hash]
    expected, facts = described.expected, described.facts
    if (expected is not None and _cut(expected)) is not if_cut:
        return ""
    if idle := _waits_longer(subject, baseline):
        return idle
    if case.script or expected is None or facts is None:
        return ""
    subject_s = _cpu_s(subject)
    theirs = _cpu_s(baseline)
    if subject_s is None or theirs is None:
        return ""
    samples = min(
        launch.consumed / launch.steps.count
        for launch in baseline
        if launch.steps and launch.consumed
    )
    update_s = ADAMW_BYTES * facts.num_params / MEMORY_BYTES[case.device] / samples
    if (
        theirs - min(update_s, theirs / 2) <= MOST_TIMES * subject_s
    ):  # ranks may share out the optimizer
        return ""
    return (
        f"the baseline takes {theirs / subject_s:.2f} times the subject's CPU time for a sample: it"
        " does more than the same training"
    )


def _waits_longer(subject: list[LaunchRecord], baseline: list[LaunchRecord]) -> str:
    """Whether a baseline's rank waits longer for a sample than one of the subject's, which has
    others to wait for; nobody had its cores meanwhile. Else empty.
    """
    least = _of_launches(baseline, idle_s)
    most = _of_launches(subject, _idle_at_most_s)
    whole = _of_launches(baseline, lambda rank: rank.window_s)
    if not (least and most and whole) or min(least) <= max(most) + LONGER * min(whole):
        return ""
    return (
        f"the baseline waits {1e3 * min(least):.3g} ms for a sample, not for a core, and the"
        f" subject {1e3 * max(most):.3g} ms at most: it is slow by more than the same training"
    )


def _idle_at_most_s(rank: RankRecord) -> float:
    """Seconds for which a rank had nothing to compute, at most where nobody knows who took them."""
    return idle_s(rank) if rank.waited_s is not None else rank.window_s - rank.cpu_s


def _of_launches(
    launches: list[LaunchRecord], seconds: Callable[[RankRecord], float]
) -> list[float]:
    """Seconds of all ranks for a sample, of each launch; empty of too few."""
    usable = [launch for launch in launches if launch.usable and launch.consumed and launch.ranks]
    per_sample = [sum(map(seconds, launch.ranks)) / (launch.consumed or 1) for launch in usable]
    return per_sample if len(per_sample) >= LEAST_LAUNCHES else []


def _cut(expected: Expected) -> bool:
    """Whether ranks hold parts of the weights or layers, and so do less than the baseline."""
    return expected.stages > 1 or any("Shard" in placed for placed in expected.placements)


def _cpu_s(launches: list[LaunchRecord]) -> float | None:
    """CPU seconds of all ranks for a sample, in the launch that took least."""
    per_sample = _of_launches(launches, lambda rank: rank.cpu_s)
    return min(per_sample) if per_sample and min(per_sample) > 0 else None
