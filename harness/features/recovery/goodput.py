"""Goodput: splits the wall clock of an interrupted training into terms, and predicts it.

    a measured training -> terms that add up to its wall clock, to the ns -> unit costs
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

#: (Seconds since the first start, rank) of faults; the last one may lie beyond the end of the
#: training.
Faults: TypeAlias = Iterator[tuple[float, int]]
#: The terms of the wall clock. Only the first one is useful work.
TERMS = (
    "train", "slow", "checkpoint", "detect", "stop", "restart", "load", "recomputed",
)  # fmt: skip
#: Time of a step beyond so many usual steps counts as slow.
SLOW = 2
#: Number of faults in a row without a checkpoint after which a simulation is given up.
FRUITLESS = 1000
#: The term that ends at each mark.
_OF = {Mark.READY: "restart", Mark.LOADED: "load", Mark.SAVED: "checkpoint"}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The unit costs of a training, each in s.

    ``step_s`` is a step, and ``slow_s`` the mean extra time of slow steps per step. ``save_s`` is a
    checkpoint. ``detect_s`` is the time from a fault to its detection, and ``stop_s`` from there
    until all ranks have ended. ``restart_s`` is a start, and ``load_s`` the loading of a
    checkpoint.
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
        """Seconds from a fault to the first step after it."""
        return self.detect_s + self.stop_s + self.restart_s + self.load_s

    def interval_s(self, every: int) -> float:
        """Return the seconds from one checkpoint to the next, which is ``every`` steps later."""
        return every * (self.step_s + self.slow_s) + self.save_s


def terms_ns(played: FaultedTraining) -> dict[str, int]:
    """Return the ns of the wall clock that each term took."""
    terms = dict.fromkeys(TERMS, 0)
    for _, term, began, ended in segments(played):
        terms[term] += ended - began
    return terms


def segments(played: FaultedTraining) -> Iterator[tuple[int, str, int, int]]:
    """Yield (number of the sitting, term, from, to in ns) in order, without gaps."""
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
    """Return the ns from the first start to the last mark."""
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
    """Yield the faults of a Poisson process; every rank is equally likely to be struck."""
    draw = random.Random(seed)
    at = 0.0
    while True:
        at += draw.expovariate(1 / mtbf_s)
        yield at, draw.randrange(ranks)


def play(
    costs: Costs, steps: int, every: int, faults: Faults, *, at_steps: bool = False
) -> dict[str, float]:
    """Return the seconds of each term of a simulated training with these unit costs and faults.

    A fault ends the current phase: a start, a load, a step, or a checkpoint, which is then lost. A
    fault during the downtime after an earlier fault has no further effect. If ``at_steps`` is set,
    a rank dies before the first step that begins after the fault's time, as in the trainings of a
    Player. A training is given up if ``FRUITLESS`` faults in a row strike before its next
    checkpoint.
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
    """Yield (term, s, steps that are kept after it) of the phases of one start, until the end."""
    yield "restart", costs.restart_s, 0
    if again:
        yield "load", costs.load_s, 0
    for step in range(saved + 1, steps + 1):
        yield "train", costs.step_s + costs.slow_s, steps if step == steps else 0
        if step % every == 0 and step < steps:
            yield "checkpoint", costs.save_s, step


def _keep(out: dict[str, float], costs: Costs, num: int) -> None:
    """Add the time of steps that were kept to the terms."""
    out["train"] += num * costs.step_s
    out["slow"] += num * costs.slow_s


def share(terms: dict[str, float]) -> float:
    """Return the goodput of simulated terms."""
    return terms["train"] / math.fsum(terms.values())


def expected(costs: Costs, every: int, mtbf_s: float) -> float:
    """Return the expected goodput of a long training, by Daly's complete model.

    An interval takes M e^(R/M) (e^(interval/M) - 1), where M is the mean time between faults and R
    the recovery time. The model allows for faults during recovery.
    """
    wall_s = mtbf_s * math.exp(costs.again_s / mtbf_s)
    return every * costs.step_s / (wall_s * math.expm1(costs.interval_s(every) / mtbf_s))


def best_every(costs: Costs, mtbf_s: float) -> int:
    """Return the number of steps between checkpoints that wastes least, by Daly's estimate; at
    least 1.

    The interval is sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d for a checkpoint of d < 2M,
    else M.
    """
    d = costs.save_s
    m = mtbf_s
    root = math.sqrt(d / (2 * m))
    between_s = math.sqrt(2 * d * m) * (1 + root / 3 + root**2 / 9) - d if d < 2 * m else m
    return max(1, round(between_s / (costs.step_s + costs.slow_s)))


def _until_struck(sitting: TrainingAttempt) -> list[tuple[Mark, int, int]]:
    """Return the marks of a sitting, none later than its fault.

    Rank 0 may reach another mark while a different rank dies.
    """
    end = sitting.struck_ns
    return [(mark, step, at if end is None else min(at, end)) for mark, step, at in sitting.marks]


def _resumed_at(sitting: TrainingAttempt) -> int:
    """Return the number of steps of the checkpoint that a sitting began with."""
    return next((step for mark, step, _ in sitting.marks if mark is Mark.LOADED), 0)


def _usual_ns(played: FaultedTraining) -> int:
    """Return the median duration (ns) of all steps."""
    took = []
    for sitting in played.sittings:
        last = sitting.began_ns
        for mark, _, at in _until_struck(sitting):
            if mark is Mark.STEP:
                took.append(at - last)
            last = at
    return int(median(took)) if took else 0
