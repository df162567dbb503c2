"""Divide the wall clock of an interrupted training into terms, and predict its goodput.

The goodput is the share of the wall clock that is spent on steps whose result is kept.

    a measured training -> terms that add up exactly to its wall clock -> unit costs
    unit costs + checkpoint interval + faults -> the simulated training
    unit costs + checkpoint interval + fault rate -> expected goodput (Daly), and the best interval

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006); J. W. Young, CACM 17 (1974).
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from harness.record.recovery import FaultedTraining, Mark, TrainingAttempt

#: The faults as pairs (seconds since the first start, rank). The last one may come after the end of
#: the training.
Faults: TypeAlias = Iterator[tuple[float, int]]
#: The terms of the wall clock. Only the first one is useful work.
TERMS = (
    "train", "slow", "checkpoint", "detect", "stop", "restart", "load", "recomputed",
)  # fmt: skip
#: A step is slow if it takes more than SLOW times the median duration of steps. Its time beyond
#: that limit belongs to the term ``slow``.
SLOW = 2
#: A simulation ends after this many successive faults without a checkpoint between them.
FRUITLESS = 1000
#: The term of the wall clock that ends at each mark. A mark is an instant that a rank records.
_OF = {Mark.READY: "restart", Mark.LOADED: "load", Mark.SAVED: "checkpoint"}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The unit costs of a training, in seconds.

    ``step_s`` is the time of a step, and ``slow_s`` the extra time of slow steps, averaged over all
    steps. ``save_s`` is the time of a checkpoint. ``detect_s`` is the time from a fault to its
    detection, and ``stop_s`` the time from its detection until all ranks have ended. ``restart_s``
    is the time of a start, and ``load_s`` the time to load a checkpoint.
    """

    step_s: float
    slow_s: float
    save_s: float
    detect_s: float
    stop_s: float
    restart_s: float
    load_s: float

    @property
    def again_s(self) -> float:
        """The seconds from a fault to the beginning of the first step after it."""
        return self.detect_s + self.stop_s + self.restart_s + self.load_s

    def interval_s(self, every: int) -> float:
        """Return the seconds from one checkpoint to the next, which is ``every`` steps later."""
        return every * (self.step_s + self.slow_s) + self.save_s


def terms_ns(played: FaultedTraining) -> dict[str, int]:
    """Return the nanoseconds of the wall clock that each term took."""
    terms = dict.fromkeys(TERMS, 0)
    for _, term, began, ended in segments(played):
        terms[term] += ended - began
    return terms


def segments(played: FaultedTraining) -> Iterator[tuple[int, str, int, int]]:
    """Yield (number of the start, term, begin, end) in order, without gaps.

    Begin and end are in nanoseconds since the epoch.
    """
    usual = _usual_ns(played)
    for number, sitting in enumerate(played.sittings):
        after = played.sittings[number + 1] if number + 1 < len(played.sittings) else None
        resumed_at = _resumed_at(after) if after is not None else played.steps
        now = sitting.began_ns
        ready = False
        for mark, step, marked_ns in _until_struck(sitting):
            if mark is not Mark.STEP:
                yield number, _OF[mark], now, marked_ns
                ready = ready or mark is Mark.LOADED
                now = marked_ns
                continue
            first = all(m is not Mark.STEP for m, s, _ in sitting.marks if s < step)
            longest_s = usual if first else SLOW * usual  # the first step includes startup work
            early = max(now, marked_ns - longest_s) if first else now
            yield number, "restart", now, early
            done = marked_ns if first else min(marked_ns, now + longest_s)
            yield number, "train" if step <= resumed_at else "recomputed", early, done
            yield number, "slow" if step <= resumed_at else "recomputed", done, marked_ns
            now = marked_ns
        if after is not None:
            assert sitting.struck_ns is not None and sitting.noticed_ns is not None
            yield number, "recomputed" if ready else "restart", now, sitting.struck_ns
            yield number, "detect", sitting.struck_ns, sitting.noticed_ns
            yield number, "stop", sitting.noticed_ns, after.began_ns


def wall_ns(played: FaultedTraining) -> int:
    """Return the nanoseconds from the first start to the last mark."""
    return played.sittings[-1].marks[-1][2] - played.sittings[0].began_ns


def goodput(played: FaultedTraining) -> float:
    """Return the share of the wall clock that was spent on steps that were kept."""
    return terms_ns(played)["train"] / wall_ns(played)


def lost_work(played: FaultedTraining) -> float:
    """Return the share of the wall clock that was spent on steps that a fault undid."""
    return terms_ns(played)["recomputed"] / wall_ns(played)


def interruptions(played: FaultedTraining) -> float:
    """Return the number of faults per hour of the wall clock."""
    return (len(played.sittings) - 1) / (wall_ns(played) / 3.6e12)


def costs(played: Sequence[FaultedTraining]) -> Costs:
    """Return the unit costs from measured trainings, at least one of which had a fault."""
    terms = [terms_ns(p) for p in played]
    faults = sum(len(p.sittings) - 1 for p in played)
    starts = sum(len(p.sittings) for p in played)
    marks = [m for p in played for sitting in p.sittings for m in _until_struck(sitting)]
    steps = sum(p.steps for p in played)
    saves = sum(mark[0] is Mark.SAVED for mark in marks)
    loads = sum(len(p.sittings) - 1 for p in played)

    def mean_s(name: str, count: int) -> float:
        return sum(term[name] for term in terms) / 1e9 / max(1, count)

    return Costs(
        step_s=mean_s("train", steps),
        slow_s=mean_s("slow", steps),
        save_s=mean_s("checkpoint", saves),
        detect_s=mean_s("detect", faults),
        stop_s=mean_s("stop", faults),
        restart_s=mean_s("restart", starts),
        load_s=mean_s("load", loads),
    )


def schedule(mtbf_s: float, seed: int, ranks: int) -> Faults:
    """Yield the faults of a Poisson process. Every rank has the same probability to fail."""
    draw = random.Random(seed)
    at = 0.0
    while True:
        at += draw.expovariate(1 / mtbf_s)
        yield at, draw.randrange(ranks)


def play(
    costs: Costs, steps: int, every: int, faults: Faults, *, at_steps: bool = False
) -> dict[str, float]:
    """Return the seconds of each term of a simulated training with these unit costs and faults.

    A fault ends the current phase: a start, a load, a step or a checkpoint. A checkpoint that a
    fault interrupts is lost. A fault during the downtime after an earlier fault has no further
    effect. If ``at_steps`` is set, a rank dies before the first step that begins after the time of
    the fault, as in the trainings of a Player. The simulation ends early after ``FRUITLESS``
    successive faults without a checkpoint between them.
    """
    terms = dict.fromkeys(TERMS, 0.0)
    now = 0.0
    saved = 0
    fruitless = 0
    due = next(faults)[0]
    while saved < steps and fruitless < FRUITLESS:
        fruitless += 1
        unsaved_s = 0.0
        struck = False
        for term, length_s, kept in _sitting(costs, saved, steps, every, again=now > 0):
            struck = (term == "train" and due <= now) if at_steps else due < now + length_s
            took_s = min(length_s, max(0.0, due - now)) if struck else length_s
            now += took_s
            if term == "train":
                unsaved_s += took_s
            else:
                terms[term] += took_s
            if struck:
                break
            if kept > saved:
                _keep(terms, costs, kept - saved)
                saved, fruitless, unsaved_s = kept, 0, 0.0
        terms["recomputed"] += unsaved_s
        if struck:
            terms["detect"] += costs.detect_s
            terms["stop"] += costs.stop_s
            now += costs.detect_s + costs.stop_s
            due = next(at for at, _ in faults if at > now)
    return terms


def _sitting(
    costs: Costs, saved: int, steps: int, every: int, *, again: bool
) -> Iterator[tuple[str, float, int]]:
    """Yield the phases of one start until the end of the training.

    Each is (term, seconds, number of steps that are saved after it). The number is 0 if the phase
    saves nothing.
    """
    yield "restart", costs.restart_s, 0
    if again:
        yield "load", costs.load_s, 0
    for step in range(saved + 1, steps + 1):
        yield "train", costs.step_s + costs.slow_s, steps if step == steps else 0
        if step % every == 0 and step < steps:
            yield "checkpoint", costs.save_s, step


def _keep(out: dict[str, float], costs: Costs, num: int) -> None:
    """Add to the terms the time of ``num`` steps whose result was kept."""
    out["train"] += num * costs.step_s
    out["slow"] += num * costs.slow_s


def share(terms: dict[str, float]) -> float:
    """Return the goodput of a simulated training from its terms."""
    return terms["train"] / math.fsum(terms.values())


def expected(costs: Costs, every: int, mtbf_s: float) -> float:
    """Return the expected goodput of a long training, by Daly's complete model.

    The expected time of the interval between two checkpoints is M e^(R/M) (e^(I/M) - 1), where I is
    its time without faults, M the mean time between faults and R the recovery time. The model
    allows for faults during recovery.
    """
    wall_s = mtbf_s * math.exp(costs.again_s / mtbf_s)
    return every * costs.step_s / (wall_s * math.expm1(costs.interval_s(every) / mtbf_s))


def best_every(costs: Costs, mtbf_s: float) -> int:
    """Return the number of steps between checkpoints that wastes the least time, at least 1.

    Daly's estimate of the interval is sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d if d < 2M,
    or else M, where d is the time of a checkpoint and M the mean time between faults.
    """
    d = costs.save_s
    m = mtbf_s
    root = math.sqrt(d / (2 * m))
    between_s = math.sqrt(2 * d * m) * (1 + root / 3 + root**2 / 9) - d if d < 2 * m else m
    return max(1, round(between_s / (costs.step_s + costs.slow_s)))


def _until_struck(sitting: TrainingAttempt) -> list[tuple[Mark, int, int]]:
    """Return the marks of one start. Marks after its fault get the time of the fault.

    There can be such marks, because rank 0 may reach another mark while a different rank dies.
    """
    end = sitting.struck_ns
    return [(mark, step, at if end is None else min(at, end)) for mark, step, at in sitting.marks]


def _resumed_at(sitting: TrainingAttempt) -> int:
    """Return the number of steps in the checkpoint with which a start began."""
    return next((step for mark, step, _ in sitting.marks if mark is Mark.LOADED), 0)


def _usual_ns(played: FaultedTraining) -> int:
    """Return the median duration of all steps in nanoseconds."""
    took = []
    for sitting in played.sittings:
        last = sitting.began_ns
        for mark, _, at in _until_struck(sitting):
            if mark is Mark.STEP:
                took.append(at - last)
            last = at
    return int(median(took)) if took else 0
