"""Compute a launch's figures from the samples of its ranks.

The functions are pure, so ``verify`` can repeat the computation offline.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from harness.analysis.samples.anatomy import anatomy
from harness.analysis.samples.references import LossCurve, astray, mean_losses
from harness.analysis.samples.steadiness import steadiness
from harness.analysis.script import counting, launches
from harness.base import stats
from harness.cases import CaseSpec, Compiled, Data, Device, Plan, StandIn, Window
from harness.record import (
    Described,
    Expected,
    Growth,
    RankRecord,
    Reached,
    Stalls,
    Steadiness,
    Steps,
    bytes_sent,
    headers,
)
from harness.record.anatomy import Anatomy
from harness.record.launch import STOOD_STILL, loads
from harness.record.store import Samples

#: Allowed range of sent bytes divided by the closed form; a second all-reduce gives 2.0.
#: ``MESSAGE_SLACK`` is added for the protocol of small messages, in bytes per step and other rank.
SENT_RATIO = (0.98, 1.05)
MESSAGE_SLACK = 16_384
#: If a single rank is idle for more than this share of its window, its model is assumed to wait
#: instead of computing.
MOST_IDLE = 0.5
#: Kinds of input for which a rank waits neither for a disk nor for another thread.
UNREAD = (Data.RESIDENT, "loaded")
#: A step that takes more than this many times the median is a stall.
STALL = 3.0
#: Allowed number of bytes that a rank writes elsewhere than to sockets, as a share of the closed
#: form. So few bytes do not come from an exchange of gradients.
BESIDE = 0.02
#: The rank's clock and the kernel's clock may differ by ``TICKS_S`` (two ticks, in seconds) plus
#: the share ``CLOCKS`` of the window.
TICKS_S = 0.02
CLOCKS = 0.01
#: Largest CPU time of a rank per core, as a share of its window. The largest observed value is
#: 1.013.
MOST_BUSY = 1.05
#: Number of steps whose losses are averaged before they are compared with a target.
SMOOTH = 8
#: A router has collapsed if the number of experts that it uses is less than this many times
#: ``top``, the number of experts for each token.
COLLAPSED = 1.25
#: A launch of a simulated device with a schedule is not usable if more than one deadline, and more
#: than this share of the deadlines, are missed. It is usable if the device caught up by the end of
#: the window, which is possible because the times of the schedule are absolute.
MISSED_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures that follow from a launch's samples; the fields are those of LaunchRecord."""

    wrong: tuple[str, ...]
    accepted: tuple[str, ...]
    steps: Steps | None
    consumed: int
    growth: Growth | None
    losses: str
    steadiness: Steadiness | None
    foreign_load: float | None
    compared: int
    stalls: Stalls | None
    anatomy: Anatomy | None
    reached: Reached | None
    final_loss: float | None


def figures(  # noqa: PLR0913  (what is known of a launch)
    case: CaseSpec,
    expected: Expected | None,
    ranks: Sequence[RankRecord],
    samples: Sequence[Samples],
    cut: int,
    reference: LossCurve | None = None,
    beside: Sequence[RankRecord] = (),
    target: float | None = None,
) -> Figures:
    """Return all figures of a launch that follow from its samples.

    Args:
        expected: the strategy's expectations; None for a user's script, which has none.
        reference: the losses of the reference training, with which the losses are compared.
        beside: the ranks of worlds that ran concurrently.
        target: the target loss of the plan.
    """
    seen = 0
    if samples:
        seen = (
            counting.consumed(case, ranks, samples, cut)
            if expected is None
            else consumed(samples, cut)
        )
    kept = slowest(samples, cut) if samples else []
    if expected is None:
        mistakes = launches.wrong(case, ranks, samples)
    else:
        mistakes = wrong(case, expected, ranks, samples, cut, reference, seen)
    return Figures(
        wrong=tuple(mistake for mistake in mistakes if not case.accepts(mistake)),
        accepted=tuple(mistake for mistake in mistakes if case.accepts(mistake)),
        steps=steps(kept) if samples else None,
        consumed=seen,
        growth=growth(samples, cut) if samples else None,
        losses=losses(samples),
        steadiness=steadiness(kept) if samples else None,
        foreign_load=foreign_load(ranks, beside),
        compared=compared(samples, reference),
        stalls=stalls(kept, cut) if samples else None,
        anatomy=anatomy(samples, cut) if expected is None else None,
        reached=reached(samples, target, expected) if samples and target and expected else None,
        final_loss=final_loss(samples) if samples and target else None,
    )


def reached(samples: Sequence[Samples], target: float, expected: Expected) -> Reached | None:
    """Return when the mean loss of ``SMOOTH`` steps first was at most ``target``, or None.

    Every step trains on new samples, so its loss is the loss on unseen data.
    """
    every = mean_losses(samples)
    if len(every) < SMOOTH:
        return None
    smooth = np.convolve(every, np.ones(SMOOTH) / SMOOTH, "valid")
    below = np.flatnonzero(smooth <= target)
    if not len(below):
        return None
    steps = int(below[0]) + SMOOTH
    return Reached(
        steps=steps,
        samples=steps * expected.global_batch,
        seconds=max(float(sample.marks_s[steps] - sample.marks_s[0]) for sample in samples),
    )


def final_loss(samples: Sequence[Samples]) -> float | None:
    """Return the mean loss of the last ``SMOOTH`` steps; None if it is not finite."""
    mean = float(np.mean(mean_losses(samples)[-SMOOTH:]))
    return mean if np.isfinite(mean) else None


def target(plan: Plan, described: Described) -> float | None:
    """Return the target loss of a plan, or None if it has no target.

    It is the loss floor, which is due to noise in the data, plus the margin of the plan.
    """
    floor = described.facts.loss_floor if described.facts else None
    return None if plan.to_loss is None or floor is None else floor + plan.to_loss


def compared(samples: Sequence[Samples], reference: LossCurve | None) -> int:
    """Return the number of steps for which both this launch and the reference have losses."""
    if reference is None or not samples:
        return 0
    return min(len(samples[0].loss), len(reference.losses))


def slowest(samples: Sequence[Samples], cut: int) -> list[float]:
    """Return the kept step times in s; a step takes as long as its slowest rank."""
    step_times: list[float] = np.max(np.stack([sample.step_s for sample in samples]), axis=0)[
        cut:
    ].tolist()
    return step_times


def foreign_load(ranks: Sequence[RankRecord], beside: Sequence[RankRecord] = ()) -> float | None:
    """Return the share of the ranks' cores that other processes used in the kept window.

    It is the busy time of the cores minus the CPU time of the ranks, on the machine with the
    largest load. Ranks that use the same cores are counted together. Return None if the kernel does
    not count busy time. Also return None if ranks share only some of their cores, or if they share
    cores with the concurrent worlds ``beside``.
    """
    out = []
    for host in sorted({rank.host for rank in ranks}):
        on_host = [rank for rank in ranks if rank.host == host]
        cores = {r.affinity: r for r in on_host}
        union = {c for cpus in cores for c in cpus}
        shared = any(union.intersection(r.affinity) for r in beside if r.host == host)
        unlike = len(union) != sum(map(len, cores))
        if shared or unlike or any(r.busy_s is None for r in on_host):
            return None
        busy = sum(rank.busy_s or 0.0 for rank in cores.values())
        window = max(r.window_s for r in on_host)
        used = sum(r.cpu_s for r in on_host)
        out.append(max(0.0, busy - used) / (window * len(union)) if window else 0.0)
    return max(out, default=None)


def steps(kept: Sequence[float]) -> Steps:
    """Return step statistics over the kept window."""
    return Steps(
        count=len(kept),
        mean_s=sum(kept) / len(kept),
        median_s=median(kept),
        p95_s=stats.quantile(kept, 0.95),
        worst_s=max(kept),
    )


def stalls(step_times: Sequence[float], cut: int) -> Stalls:
    """Return the kept steps that took more than STALL times the median."""
    kept = np.array(step_times)
    usual = float(np.median(kept))
    odd = np.flatnonzero(kept > STALL * usual)
    lost = float((kept[odd] - usual).sum() / kept.sum())
    return Stalls(steps=tuple(int(i) + cut for i in odd), share=lost)


class Perturbation(NamedTuple):
    """The factor by which profiling lengthens steps: the estimate, and its lower bound."""

    ratio: float | None = None
    low: float | None = None


def perturbation(samples: Sequence[Samples], window: Window) -> Perturbation:
    """Return the ratio of profiled steps to steps without a profiler.

    If the window has ``pairs``, it contains single profiled steps. Each of them is compared with
    the step before and the step after it. ``low`` is then the lower end of the 95 % interval of the
    mean log-ratio (Student's t). Without ``pairs``, the ratio is the median of the profiled steps
    divided by the median of the steps before them. The step between these two groups warms up the
    profiler and is ignored.
    """
    if not window.profiled:
        return Perturbation()
    if not window.pairs:
        kept = slowest(samples, window.cut)
        before = kept[: -window.profiled - 1]
        return Perturbation(median(kept[-window.profiled :]) / median(before))
    logs = np.log(slowest(samples, 0)).tolist()
    first = window.steps - window.profiled - 2 * window.pairs
    pairs = [
        logs[i] - (logs[i - 1] + logs[i + 1]) / 2 for i in range(first, first + 2 * window.pairs, 2)
    ]
    mean = stats.t_interval(pairs, 0.05)
    return Perturbation(math.exp(mean.mean), None if mean.low is None else math.exp(mean.low))


def window_s(samples: Samples, cut: int) -> float:
    """Return the wall time of a rank's kept window in s."""
    return float(samples.marks_s[-1] - samples.marks_s[cut])


def consumed(samples: Sequence[Samples], cut: int) -> int:
    """Return the number of samples that were consumed in the kept steps, over all ranks.

    A sample counts once in each step. Samples are identified by the content that reached the model.
    In older records they are identified by the ids that were handed out.
    """
    if any(sample.seen is None for sample in samples):
        kept = [sample.sample_ids[cut:] for sample in samples]
        return sum(len(np.unique(np.concatenate(step))) for step in zip(*kept, strict=True))
    reached = _by_step([sample.seen for sample in samples if sample.seen is not None], cut)
    if any(sample.content is None for sample in samples):
        return sum(len({row for row in step if row}) for step in reached)
    ids = _by_step([sample.sample_ids for sample in samples], cut)
    content = _by_step([sample.content for sample in samples if sample.content is not None], cut)
    total = 0
    for handed_out, rows, seen in zip(ids, content, map(frozenset, reached), strict=True):
        total += len({i for i, row in zip(handed_out, rows, strict=True) if row in seen})
    return total  # counted by id, because two samples may be identical


def _by_step(ranks: Sequence[np.ndarray], cut: int) -> list[list[int]]:
    """Return each kept step's values over all ranks, as lists.

    Sets of a few list elements are faster than sorted arrays.
    """
    values: list[list[int]] = np.concatenate([rank[cut:] for rank in ranks], axis=1).tolist()
    return values


def growth(samples: Sequence[Samples], cut: int) -> Growth | None:
    """Return the growth of memory of the rank whose memory grows fastest, in bytes per step.

    Return None if a rank has fewer than 6 readings.
    """
    fastest = None
    for rank, sample in enumerate(samples):
        looked = np.flatnonzero(sample.rss_bytes[cut:])
        if len(looked) < 6:
            return None
        values = [float(v) for v in sample.rss_bytes[cut:][looked]]
        apart = int(looked[1] - looked[0])  # steps between two readings
        line = stats.slope(values)
        assert line.low is not None and line.high is not None
        if fastest is None or line.mean / apart > fastest.slope:
            grew = sum(b > a for a, b in itertools.pairwise(values)) / (len(values) - 1)
            mean, low, high = (x / apart for x in (line.mean, line.low, line.high))
            fastest = Growth(rank=rank, steady=grew, slope=mean, low=low, high=high)
    return fastest


def losses(samples: Sequence[Samples]) -> str:
    """Return a digest of all ranks' losses, which is equal for bit-identical trainings."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.loss.tobytes())
    return digest.hexdigest()[:16]


def _collapsed(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Report layers whose router uses hardly more experts than a single token needs.

    The remaining experts are never trained. The effective number of used experts is 1 / (sum of the
    squared shares of tokens).
    """
    for layer, load in loads(ranks).items():
        top = next(rank.routed[layer].top for rank in ranks if rank.routed and layer in rank.routed)
        busy = sum(load) ** 2 / sum(x * x for x in load)
        if len(load) > top and busy < COLLAPSED * top:
            yield f"experts: the router of {layer} uses {busy:.2g} of {len(load)}: it has collapsed"


def _waits(case: CaseSpec, ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Report a single rank that mostly waited although no other rank or process could delay it.

    Waiting scales perfectly to any number of ranks. A model that waits instead of computing is
    therefore simulated, and has to declare it.
    """
    alone = case.world_size == 1 and case.device is Device.CPU and case.data in UNREAD
    if not alone or case.stand_in or case.slowed or case.offload:
        return
    (rank,) = ranks
    if idle_s(rank) > MOST_IDLE * rank.window_s:
        share = rank.cpu_s / rank.window_s
        yield (
            f"waits: the only rank computed for {share:.0%} of its window, and did not wait for a"
            " core: it was stopped (SIGSTOP), or its model waits instead of computing and has to"
            " declare it (STAND_IN)"
        )


def idle_s(rank: RankRecord) -> float:
    """Return the seconds in the window for which a rank had nothing to compute.

    This is the window minus the CPU time, minus the time in which the rank waited for a core, minus
    the time in which a CPU quota stopped it. The kernel counts the waits for a core. Without that
    count, they are the time in which other processes used the rank's cores.
    """
    busy_s = rank.window_s if rank.busy_s is None else rank.busy_s
    taken_s = max(busy_s - rank.cpu_s, 0.0)
    if rank.waited_s is not None:
        taken_s = min(taken_s, rank.waited_s)
    return rank.window_s - rank.cpu_s - taken_s - (rank.throttled_s or 0.0)


def _cores(rank: RankRecord) -> Iterator[str]:
    """Report a rank that used more cores than it was given.

    The comparison would be unfair, because its baseline could not use more cores.
    """
    has_s = len(rank.affinity) * rank.window_s
    if has_s and rank.cpu_s > MOST_BUSY * has_s + TICKS_S:
        cores = f"{len(rank.affinity)} core" + "s" * (len(rank.affinity) > 1)
        yield (
            f"cores: rank {rank.rank} computed for {rank.cpu_s:.3g} s in a window of"
            f" {rank.window_s:.3g} s, but was given {cores}"
        )


def _bytes(rank: RankRecord, expected: Expected, cut: int, steps: int) -> Iterator[str]:
    """Report a rank that sent too few or too many bytes, or moved data without its sockets."""
    if rank.sent_bytes is None:
        return
    window = range(cut, cut + steps)
    want = bytes_sent(expected, rank.rank, window)
    others = max(1, len(expected.sent_bytes) - 1)
    slack = MESSAGE_SLACK * others + headers(rank.issued, len(expected.sent_bytes))
    most = SENT_RATIO[1] * want + slack * steps
    if want and not SENT_RATIO[0] * want <= rank.sent_bytes <= most:
        ratio = rank.sent_bytes / want
        yield f"bytes: rank {rank.rank} sent {ratio:.3f}x of {expected.formula}"
    beside = (rank.written_bytes or 0) - rank.sent_bytes
    if beside > BESIDE * want + MESSAGE_SLACK * steps:
        much = f"{beside / steps:.3g} B a step past its sockets, to files or to its output"
        yield f"bytes: rank {rank.rank} wrote {much}"
    if rank.shared:
        yield (
            f"bytes: rank {rank.rank} can exchange bytes with other processes that nothing counts:"
            f" {', '.join(rank.shared)}"
        )


def _clock(rank: RankRecord) -> Iterator[str]:
    """Report a rank whose window has a different length according to the kernel's clock."""
    if rank.kernel_s is None or not rank.window_s:
        return
    if abs(rank.kernel_s - rank.window_s) > TICKS_S + CLOCKS * rank.window_s:
        yield (
            f"clock: rank {rank.rank} timed {rank.window_s:.3f} s for its window, but the kernel"
            f" timed {rank.kernel_s:.3f} s"
        )


def _other(case: CaseSpec, expected: Expected, r: RankRecord) -> Iterator[str]:
    """Report each way in which a rank ran something else than its case."""
    backend = case.backend if case.communicate else "fake"
    if r.backend != backend:
        yield f"rank {r.rank}: backend {r.backend}, expected {backend}"
    if (r.device == "cpu") != (case.device == "cpu"):
        yield f"rank {r.rank}: ran on {r.device}, expected {case.device}"
    if r.ran.module != expected.module:
        yield f"rank {r.rank}: trained a {r.ran.module}, not a {expected.module}"
    if expected.placements and r.ran.placements != expected.placements:
        yield f"rank {r.rank}: placed {r.ran.placements}, not {expected.placements}"
    if r.ran.schedule != expected.schedule:
        yield f"rank {r.rank}: schedule {r.ran.schedule}, not {expected.schedule}"
    if r.ran.compressor != (case.compressor or ""):
        yield f"rank {r.rank}: compressor {r.ran.compressor}, not {case.compressor}"
    if expected.staleness is not None and (r.ran.staleness or 0) > expected.staleness:
        behind = r.ran.staleness
        most = expected.staleness
        yield f"rank {r.rank}: staleness of {behind} steps, expected at most {most}"


def _computed(case: CaseSpec, r: RankRecord, cut: int) -> Iterator[str]:
    """Report work inside the window that belongs before it, or should not occur at all."""
    if case.compiled is not Compiled.NO and not r.ran.compile_s:
        yield f"rank {r.rank}: nothing was compiled, expected compiled={case.compiled}"
    if r.ran.recompiled:
        yield f"rank {r.rank}: compiled again inside the window"
    if skipped := sum(step >= cut for step in r.ran.skipped or ()):
        yield f"rank {r.rank}: {skipped} steps of the window were skipped: gradients overflowed"


def _shared_devices(case: CaseSpec, ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Report ranks that have the same local rank on one node, or GPUs with the same UUID."""
    if len({(rank.node, rank.local_rank) for rank in ranks}) != len(ranks):
        yield "world: two ranks on one device"
    if StandIn.SHARED_GPU in case.stand_in:
        return
    for uuid, count in Counter(rank.device_uuid for rank in ranks if rank.device_uuid).items():
        if count > 1:
            yield f"world: {count} ranks on one device, {uuid}"


def wrong(
    case: CaseSpec,
    expected: Expected,
    ranks: Sequence[RankRecord],
    samples: Sequence[Samples],
    cut: int,
    reference: LossCurve | None = None,
    seen: int | None = None,
) -> tuple[str, ...]:
    """Return a message for everything that did not run as requested.

    A launch with any message is never judged.
    """
    joined = [rank.rank for rank in ranks]
    if joined != list(range(case.world_size)):
        return (f"world: ranks {joined} joined, expected {case.world_size} ranks",)
    kept = len(samples[0].sample_ids) - cut
    seen = consumed(samples, cut) if seen is None else seen
    return (
        *_misplaced(case, ranks),
        *_shared_devices(case, ranks),
        *_waits(case, ranks),
        *(
            why
            for rank in ranks
            for why in (*_other(case, expected, rank), *_computed(case, rank, cut))
        ),
        *_miscounted(seen, kept * expected.global_batch),
        *_collapsed(ranks),
        *_unlike_replicas(ranks),
        *(
            why
            for rank in ranks
            for why in (*_bytes(rank, expected, cut, kept), *_clock(rank), *_cores(rank))
        ),
        *_behind_schedule(ranks, len(samples[0].sample_ids), kept),
        # Without communication, ranks lack each other's gradients, and their losses differ from
        # those of the reference.
        *(_losses(samples, reference) if case.communicate else ()),
    )


def _misplaced(case: CaseSpec, ranks: Sequence[RankRecord]) -> Iterator[str]:
    if len({(rank.host, rank.pid) for rank in ranks}) != len(ranks):
        yield "world: two ranks in one process"
    per_node = Counter(rank.node for rank in ranks)
    if tuple(per_node[n] for n in sorted(per_node)) != case.nodes:
        yield f"world: ranks per node {dict(per_node)}, expected {case.nodes}"


def _miscounted(seen: int, asked: int) -> Iterator[str]:
    if seen != asked:
        yield f"samples: {seen} consumed, expected {asked}"


def _unlike_replicas(ranks: Sequence[RankRecord]) -> Iterator[str]:
    held = {(rank.part, rank.replica) for rank in ranks if rank.replica}
    if unlike := len(held) - len({part for part, _ in held}):
        yield f"replicas: ranks ended with {unlike + 1} different sets of parameters"


def _behind_schedule(ranks: Sequence[RankRecord], steps: int, kept: int) -> Iterator[str]:
    """Report a simulated device that missed many deadlines of its schedule and ended late."""
    misses = max(rank.clock_misses for rank in ranks)
    planned_s = kept * (ranks[0].planted_s or math.inf)
    late = max(rank.window_s for rank in ranks) / planned_s - 1
    if misses > max(1, MISSED_SHARE * steps) and late > MISSED_SHARE / 2:
        yield f"{STOOD_STILL}: {misses} deadlines of the schedule missed, {late:.1%} late"


def _losses(samples: Sequence[Samples], reference: LossCurve | None) -> Iterator[str]:
    if any(not np.isfinite(sample.loss[~np.isnan(sample.loss)]).all() for sample in samples):
        yield "loss: not finite"
    if all(np.isnan(sample.loss).any() for sample in samples):
        yield "loss: no rank has a loss for every step"
    elif reference is not None and (reason := astray(samples, reference)):
        yield reason
