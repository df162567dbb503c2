"""Test predictions on synthetic worlds: do predictions from N <= 8 cover the truth at 64 to 1,024?

python -m benchmarks.foresight.closed_loop [WORLDS] # 1,000 in about a minute

A world is simulated event by event (``simulate.py``), not by the terms that are fitted to it. Its
parameters are hidden. Its jitter has a heavy tail, whereas the model assumes a normal distribution.
Its network has a knee: from some number of ranks on a switch is shared, and each rank gets less of
its bandwidth.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from harness.features.foresight import attribute, infer
from harness.features.foresight.advise import advise
from harness.features.foresight.infer import Posterior
from harness.features.foresight.learned import Regime, learned
from harness.features.foresight.physics import simulate
from harness.features.foresight.physics.collectives import CollectiveKind, Fabric, nccl
from harness.features.foresight.prediction import predict
from harness.features.foresight.published.table import PublishedTable
from harness.features.foresight.shapes import KeptStates, Model, Point, Shape
from harness.features.foresight.terms import BUCKET_BYTES

Array = NDArray[np.float64]

MEASURED = (1, 2, 4, 8)
TRUTHS = (64, 128, 256, 512, 1024)
#: Steps of one measurement, of which the median is used.
STEPS = 40
#: Injected knees: numbers of ranks from which on the network is shared, and the range of the factor
#: by which transfers slow down.
SHARED_FROM = (16, 32, 64, 128, 256, 512)
SHARED_BY = (1.5, 3.0)
#: Smallest efficiency that an injected knee costs at the largest size.
COSTS = 0.10


@dataclass(frozen=True, kw_only=True)
class MadeUpWorld:
    """A synthetic world. The prediction knows only its shape and its fabric."""

    shape: Shape
    fabric: Fabric
    flops_per_s: float
    link: float
    latency: float
    slowed: float  # share by which compute slows down as soon as there is an exchange
    contended: float  # share by which compute slows down under an exchange that overlaps all of it
    host_s: float
    jitter_s: float
    tail: float  # degrees of freedom of Student's t: fewer mean a heavier tail
    shared_from: int  # number of ranks from which on the network is shared
    shared_by: float
    growth: float  # of a step, per doubling of the ranks

    def exchange(self, ranks: int, num_bytes: float, kind: CollectiveKind) -> float:
        cost = nccl(kind, num_bytes, ranks, self.fabric.per_node, self.fabric)
        shared = self.shared_by if ranks >= self.shared_from else 1.0
        return self.latency * cost.latency_s + shared * cost.transfer_s / self.link

    def work_s(self, batch: float) -> float:
        """Return the compute time of one rank in a step, in s."""
        per_token = self.shape.model.flops_per_token(self.shape.seq) or 0.0
        return per_token * batch * self.shape.seq / self.flops_per_s

    def volume_s(self, shape: Shape) -> float:
        """Return the seconds of a step in which the links are busy."""
        num_bytes = (3 if shape.kept is KeptStates.ALL_CUT else 4) * (shape.model.params or 0.0)
        return 2 * self.exchange(shape.ranks, num_bytes, CollectiveKind.ALL_GATHER)

    def quiet_s(self, shape: Shape) -> tuple[float, float]:
        """Return the seconds of a step without jitter, and those that the exchange adds to it."""
        compute = self.work_s(shape.micro_batch)
        params = self.shape.model.params or 0.0
        alone = self.host_s + compute
        if shape.ranks == 1:
            return alone, 0.0
        beside = min(1.0, self.volume_s(shape) / compute)
        slowed = compute * (1 + self.slowed + self.contended * beside)
        forward = slowed / 3
        backward = 2 * slowed / 3
        if shape.kept is KeptStates.ALL_CUT:
            layers = self.shape.model.layers or 1
            gather = self.exchange(shape.ranks, 2 * params / layers, CollectiveKind.ALL_GATHER)
            scatter = self.exchange(shape.ranks, 2 * params / layers, CollectiveKind.REDUCE_SCATTER)
            played = simulate.gathered_s(
                np.asarray(forward / layers),
                np.asarray(backward / layers),
                np.asarray(gather),
                np.asarray(scatter),
                layers,
            )
        else:
            pieces = max(1, round(4 * params / BUCKET_BYTES))
            cost = self.exchange(shape.ranks, 4 * params / pieces, CollectiveKind.ALL_REDUCE)
            ready = [np.asarray(backward * (i + 1) / pieces) for i in range(pieces)]
            costs = [np.asarray(cost)] * pieces
            played = forward + simulate.buckets_s(ready, costs, np.asarray(backward))
        total = (self.host_s + float(played)) * (1 + self.growth) ** float(np.log2(shape.ranks))
        return total, float(played) - compute

    def jitter(self, ranks: int, random: np.random.Generator, num: int) -> Array:
        """Return the jitter of the slowest rank in ``num`` steps, each drawn directly as a
        quantile.
        """
        highest = random.uniform(size=num) ** (1 / ranks)
        drawn: Array = np.abs(stdtrit(self.tail, (1 + highest) / 2)) * self.jitter_s
        return drawn

    def measure(self, shape: Shape, random: np.random.Generator) -> float:
        """Return the median of STEPS steps, with launch-to-launch variation."""
        steps = self.quiet_s(shape)[0] + self.jitter(shape.ranks, random, STEPS)
        return float(np.median(steps) * np.exp(0.004 * random.standard_normal()))

    def truth(self, shape: Shape) -> float:
        """Return the median of the distribution of steps."""
        middle = stdtrit(self.tail, (1 + 0.5 ** (1 / shape.ranks)) / 2)
        return self.quiet_s(shape)[0] + float(middle) * self.jitter_s


def imagine(random: np.random.Generator) -> MadeUpWorld:
    """Draw a world from a wide range: models of 0.1 to 8 G parameters, links of 3 to 50 GB/s."""

    def about(median: float, spread: float) -> float:
        return float(median * np.exp(spread * random.standard_normal()))

    layers = int(random.choice([12, 24, 32]))
    params = float(np.exp(random.uniform(np.log(1e8), np.log(8e9))))
    model = Model(name="made up", params=params, layers=layers)
    kept = KeptStates.WHOLE if params < 1e9 and random.uniform() < 0.6 else KeptStates.ALL_CUT
    fabric = Fabric(
        per_node=int(random.choice([2, 4])),
        intra_bytes_per_s=float(random.choice([60e9, 150e9, 300e9])),
        inter_bytes_per_s=float(random.choice([3e9, 6e9, 12.5e9, 25e9, 50e9])),
    )
    shape = Shape(
        ranks=1, micro_batch=float(random.choice([2, 4, 8, 16])), seq=2048, kept=kept, model=model
    )
    return MadeUpWorld(
        shape=shape,
        fabric=fabric,
        flops_per_s=about(1.5e14, 0.3),
        link=min(1.0, about(0.75, 0.2)),
        latency=about(1.3, 0.4),
        slowed=float(random.uniform(0.0, 0.04)),
        contended=float(random.uniform(0.0, 0.1)),
        host_s=about(0.010, 0.7),
        jitter_s=about(0.008, 0.7),
        tail=float(random.uniform(3.0, 8.0)),
        shared_from=int(random.choice([32, 128, 512, 4096, 4096])),
        shared_by=float(random.uniform(1.0, 1.3)),
        growth=float(random.uniform(0.0, 0.012)),
    )


@dataclass(frozen=True, kw_only=True)
class LoopTrial:
    """The result of one world.

    ``covered`` states for each true efficiency whether the interval covers it. ``width`` is the
    standard deviation of the predicted ln(step time) at the largest size. ``knee`` and ``flagged``
    are about the largest size, too. ``after_advice`` and ``after_doubling`` are the width after a
    measurement of the advised size, or of twice the largest one.
    """

    covered: tuple[bool, ...]
    misses: tuple[float, ...]
    width: float
    knee: bool
    flagged: bool
    after_advice: float | None = None
    after_doubling: float | None = None


def try_(world: MadeUpWorld, random: np.random.Generator, advised: bool) -> LoopTrial:
    """Measure a world at small sizes, predict the large ones, and compare."""
    shapes = [replace(world.shape, ranks=n) for n in MEASURED]
    taken = [world.measure(shape, random) for shape in shapes]
    targets = [replace(world.shape, ranks=n) for n in TRUTHS]
    points = [
        *(Point(shape=s, step_s=t, calibrates=True) for s, t in zip(shapes, taken, strict=True)),
        *(Point(shape=target, step_s=world.truth(target)) for target in targets),
    ]
    table = PublishedTable(
        id="made up", family="made up", fabric=world.fabric, peak_flops=None, points=tuple(points)
    )
    made = predict(table, learned())
    # If an exchange takes most of a step, a prediction is withheld until the user states more
    # facts. All facts of this world are known, so withheld predictions count, too.
    seen = [
        *made.predicted,
        *(refusal.unsaid for refusal in made.refused if refusal.unsaid is not None),
    ]
    known = _known(world, shapes, taken)
    last = seen[-1]
    trial = LoopTrial(
        covered=tuple(bool(size.covered) for size in seen),
        misses=tuple(size.efficiency - (size.measured or 0.0) for size in seen),
        width=float(infer.foresee(known, targets[-1:]).sd[0]),
        knee=_has_knee(world, shapes, targets[-1]),
        flagged=last.regime is Regime.UNSEEN,
    )
    if not advised:
        return trial
    best = advise(known, targets[-1]).shape
    twice = replace(world.shape, ranks=2 * MEASURED[-1])
    widths = []
    for extra in (best, twice):
        more = _known(world, [*shapes, extra], [*taken, world.measure(extra, random)])
        widths.append(float(infer.foresee(more, targets[-1:]).sd[0]))
    return replace(trial, after_advice=widths[0], after_doubling=widths[1])


def _known(world: MadeUpWorld, shapes: Sequence[Shape], taken: Sequence[float]) -> Posterior:
    beliefs = learned().beliefs
    return infer.calibrate(world.fabric, shapes, taken, [world.shape.model], beliefs=beliefs)


def _has_knee(world: MadeUpWorld, shapes: Sequence[Shape], target: Shape) -> bool:
    """Return whether the exchange adds KNEE of a step at the target, and under a third of that
    before.
    """
    shares = [added / total for total, added in map(world.quiet_s, [*shapes, target])]
    return shares[-1] > attribute.KNEE and shares[-1] > 3 * max(shares[:-1])


def trials(num: int, seed: int = 20, advised: bool = False) -> list[LoopTrial]:
    random = np.random.default_rng(seed)
    return [try_(imagine(random), random, advised) for _ in range(num)]


@dataclass(frozen=True, kw_only=True)
class KneesShown:
    """The number of worlds in which a measurement of each proposed size showed the knee.

    The sizes are the one advised for a knee, the one that narrows the target's interval most, and
    twice the largest measured size. ``false`` is the number of false alarms of the size advised for
    a knee, in the same worlds without a knee.
    """

    worlds: int
    by_knee: int
    by_advice: int
    by_doubling: int
    false: int


def knees(num: int, seed: int = 21) -> KneesShown:
    """Count the worlds with an injected knee in which following the advice shows it.

    A knee is shown by a step that is longer than nine in ten of the predicted ones.
    """
    random = np.random.default_rng(seed)
    shown = np.zeros(4, dtype=int)
    worlds = 0
    while worlds < num:
        flat = replace(imagine(random), shared_by=1.0)
        by = float(random.uniform(*SHARED_BY))
        world = replace(flat, shared_from=int(random.choice(SHARED_FROM)), shared_by=by)
        target = replace(world.shape, ranks=TRUTHS[-1])
        alone = world.truth(world.shape)
        if alone / flat.truth(target) - alone / world.truth(target) < COSTS:
            continue
        worlds += 1
        shapes = [replace(world.shape, ranks=n) for n in MEASURED]
        known = _known(world, shapes, [world.measure(shape, random) for shape in shapes])
        advice = advise(known, target)
        assert advice.knee is not None
        twice = replace(world.shape, ranks=2 * MEASURED[-1])
        sizes = [advice.knee, advice.shape, twice]
        longest = np.quantile(infer.foresee(known, sizes).draws, 0.9, axis=0)
        took = [np.log(world.measure(size, random)) for size in sizes]
        without = np.log(flat.measure(advice.knee, random))
        shown += [*(t > most for t, most in zip(took, longest, strict=True)), without > longest[0]]
    by_knee, by_advice, by_doubling, false = (int(n) for n in shown)
    return KneesShown(
        worlds=worlds,
        by_knee=by_knee,
        by_advice=by_advice,
        by_doubling=by_doubling,
        false=false,
    )


def lines(worlds: Sequence[LoopTrial]) -> list[str]:
    """Format the results of many worlds as lines."""
    covered = np.array([trial.covered for trial in worlds])
    misses = 100 * np.abs(np.array([trial.misses for trial in worlds]))
    shown = [f"{len(worlds)} worlds, measured at {MEASURED}, 80 % intervals"]
    shown += [
        f"  {ranks:5}  {covered[:, i].mean():.1%} covered, mean error {misses[:, i].mean():.1f} points"
        for i, ranks in enumerate(TRUTHS)
    ]
    knees = sum(trial.knee for trial in worlds)
    flags = sum(trial.flagged for trial in worlds)
    both = sum(trial.knee and trial.flagged for trial in worlds)
    shown.append(f"  knees: {both} of {knees} flagged, {flags - both} flags without a knee")
    pairs = [(trial.after_advice, trial.after_doubling) for trial in worlds]
    after = np.array([pair for pair in pairs if None not in pair], float)
    if len(after):
        better = (after[:, 0] < after[:, 1]).mean()
        before = np.mean([trial.width for trial in worlds])
        advice, doubling = after.mean(axis=0)
        shown.append(
            f"  sd of ln(step) at {TRUTHS[-1]}: {before:.3f}, after the advised size {advice:.3f},"
            f" after doubling {doubling:.3f}; narrower in {better:.0%}"
        )
    return shown


if __name__ == "__main__":
    made = trials(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, advised=True)
    print("\n".join(lines(made)))
    print("  injected knees:", knees(100))
