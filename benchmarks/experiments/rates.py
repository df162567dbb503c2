"""Simulate how often the judge is wrong, correct or undecided: the tables of docs/statistics.md.

    python benchmarks/experiments/rates.py [--runs 20000]

As in a plan, a run is judged after pairs 4, 6 .. 16 (2 to 8 blocks). ``decide`` is a vectorized
version of the shipped judge; ``test_rates`` checks that both give the same verdicts.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from harness.analysis import packing
from harness.analysis.judging import biases, judge
from harness.cases import CaseSpec, Device, Site

LOOKS = range(4, 17, 2)
#: Relative deviations of a pair. 0.5 % is twice the deviation of three quarters of the published
#: systems. A published comparison of stopping rules assumed 1.33 %. Launches of mixtures of experts
#: have 3 to 5 %.
SDS = (0.0014, 0.003, 0.005, 0.0133, 0.03, 0.05)
BOUND = 0.85
#: Number of pairs whose worlds run concurrently, as in the first blocks of a plan, and number of
#: devices on which a probe runs.
BESIDE, PROBED = 4, 16

#: Steps of mixtures of experts, from published logs of 4,096 devices: relative deviation, share of
#: late steps, range of their delay as a share of the step, and number of steps in a window.
MOE_STEP_SD, MOE_LATE, MOE_LATER, MOE_STEPS = 0.045, 0.05, (0.07, 0.34), 28
#: Number of nodes of a cluster whose halves differ, and number of runs for which the shipped code
#: draws placements. The speeds of nodes are drawn anew for every simulated run.
NODES, DRAWN = 16, 100
WORLDS = (1, 2, 4, 8, 16)
#: The share by which half of the nodes are slower, and the probability that a node remains slow
#: until the next turn.
PLACED = {"two racks, 10 % apart": (0.1, 1.0), "5 % slower, stays 9 turns in 10": (0.05, 0.9)}

#: A function that returns log ratios (runs, pairs), with the mean throughput exactly on the bound.
Noise = Callable[[np.random.Generator, tuple[int, int], float], np.ndarray]


def normal(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
    return rng.normal(0, sd, size)


def heavy(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
    """Return noise of Student's t with 3 degrees of freedom, scaled to the deviation."""
    return rng.standard_t(3, size) / math.sqrt(3) * sd


def lognormal(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
    """Return noise with a tail of slow launches, as if a subject waits for its slowest rank."""
    mean, variance = math.exp(0.5), (math.e - 1) * math.e
    return (mean - np.exp(rng.normal(0, 1, size))) / math.sqrt(variance) * sd


def heteroscedastic(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
    """Return noise in which half of the launches have a 2.6 times larger deviation than the others."""
    return rng.normal(0, sd, size) * np.where(rng.random(size) < 0.5, 0.5, math.sqrt(1.75))


def correlated(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
    """Return AR(1) noise with a correlation of 0.5 between successive pairs."""
    out = rng.normal(0, sd, size)
    for i in range(1, size[1]):
        out[:, i] = 0.5 * out[:, i - 1] + math.sqrt(0.75) * out[:, i]
    return out


def between_blocks(correlation: float) -> Noise:
    """Return noise that is correlated between successive blocks; the pairs of a block share 90 %."""

    def noise(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
        runs, pairs = size
        blocks = rng.normal(0, 1, (runs, pairs // 2))
        for i in range(1, pairs // 2):
            fresh = math.sqrt(1 - correlation**2) * blocks[:, i]
            blocks[:, i] = correlation * blocks[:, i - 1] + fresh
        shared = math.sqrt(0.9) * np.repeat(blocks, 2, 1)
        return np.asarray(sd * (shared + math.sqrt(0.1) * rng.normal(0, 1, size)))

    return noise


def over_the_day(percent: float) -> Noise:
    """Return noise with a sine of this amplitude, of which a run covers half a period."""

    def noise(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
        phase = rng.uniform(0, 2 * np.pi, (size[0], 1))
        wave = np.sin(phase + np.pi * np.arange(size[1]) / size[1])
        return np.asarray(rng.normal(0, sd, size) + percent / 100 * wave)

    return noise


def drift(percent: float) -> Noise:
    """Return noise in which the subject becomes steadily slower, by ``percent`` over all pairs."""

    def noise(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
        line = np.arange(size[1]) / (size[1] - 1) - 0.5
        return np.asarray(rng.normal(0, sd, size) - percent / 100 * line)

    return noise


def slow(share: float, slower: float) -> Noise:
    """Return noise in which a ``share`` of the subject's launches is slower by the share
    ``slower``.
    """

    def noise(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
        mean = 1 - share + share / (1 + slower)
        odd = np.where(rng.random(size) < share, math.log(1 + slower), 0.0)
        return np.asarray(rng.normal(0, sd, size) - odd - math.log(mean))

    return noise


def moe(rng: np.random.Generator, size: tuple[int, int], sd: float) -> np.ndarray:
    """Return noise of a mixture of experts: steps have a deviation of 4.5 %, and 5 % of them are 7
    to 34 % late.
    """
    mean = float(_moe(np.random.default_rng(0), (20_000,)).mean()) * math.exp(sd**2 / 2)
    return np.asarray(np.log(_moe(rng, size) / mean) + rng.normal(0, sd, size))


def _moe(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Return the speeds of windows."""
    steps = np.exp(rng.normal(0, MOE_STEP_SD, (*size, MOE_STEPS)))
    late = rng.random(steps.shape) < MOE_LATE
    steps *= np.where(late, 1 + rng.uniform(*MOE_LATER, steps.shape), 1.0)
    return np.asarray(1 / steps.mean(-1))


#: The kinds of noise for which the error rates are stated.
DECLARED: dict[str, Noise] = {
    "normal": normal,
    "t, 3 degrees": heavy,
    "lognormal": lognormal,
    "heteroscedastic": heteroscedastic,
    "AR(1) 0.5": correlated,
    "drift 2 %": drift(2),
    "drift 4 %": drift(4),
    "drift 6 %": drift(6),
    "5 % of launches 5 % slower": slow(0.05, 0.05),
    "10 % of launches 5 % slower": slow(0.1, 0.05),
    "20 % of launches 5 % slower": slow(0.2, 0.05),
    "50 % of launches 5 % slower": slow(0.5, 0.05),
    "50 % of launches 10 % slower": slow(0.5, 0.1),
    "MoE steps": moe,
}
#: Kinds of noise for which no error rate is stated, because so few launches cannot show them.
BEYOND: dict[str, Noise] = {
    "20 % of launches 10 % slower": slow(0.2, 0.1),
    "10 % of launches 30 % slower": slow(0.1, 0.3),
    "1 launch in 20 three times slower": slow(0.05, 2.0),
    "AR(1) 0.5 between blocks": between_blocks(0.5),
    "AR(1) 0.8 between blocks": between_blocks(0.8),
    "1 % over the day": over_the_day(1),
    "2 % over the day": over_the_day(2),
}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The shares of runs by verdict, and the mean number of pairs at the first decision."""

    runs: int
    passed: float
    failed: float
    confirmed: float  # FAILs that a fresh set confirms, and that are therefore reported
    pairs: float

    def upper(self, share: float, level: float = 0.99) -> float:
        """Return the upper confidence limit of a rate (Clopper and Pearson)."""
        from scipy.stats import beta

        k = round(share * self.runs)
        return float(beta.ppf(level, k + 1, self.runs - k))


def decide(logs: np.ndarray, taken: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the status and the number of pairs of each run in ``logs`` (runs, pairs).

    The status is 1 for PASS, -1 for FAIL and 0 for undecided. ``logs`` are log ratios minus the
    logarithm of the lower bound. ``taken`` (runs, probes) states the slowdown that concurrent
    worlds may have caused to the baselines in the first pairs, as estimated from one probe, from
    two, and so on. A further probe is made only if it can decide the verdict.
    """
    runs, horizon = logs.shape
    status, pairs = np.zeros(runs, int), np.full(runs, horizon)
    counts = np.zeros((runs, 1)) if taken is None else taken
    probes, sums = np.zeros(runs, int), np.arange(runs)
    for n in (n for n in LOOKS if n <= horizon):
        x = logs[:, :n]
        mean, margin = x.mean(1), judge.rounding_allowance(n)
        kept = judge.kept_by_standard(n)
        half = (judge.radius(1.0, n, judge.ALPHA) or math.inf) * x.std(1, ddof=1) * _spread(x)
        spare = mean - half - np.maximum(kept, margin + _trend_loss(x, horizon))
        while True:
            beside = -np.log1p(-counts[sums, probes] * min(1.0, BESIDE / n))
            met = spare - beside >= 0
            more = (status == 0) & ~met & (spare >= 0) & (probes < counts.shape[1] - 1)
            if not more.any():
                break
            probes[more] += 1
        missed = mean + half < -(margin if n < judge.BARE_FAIL else 0.0)
        new = (status == 0) & (met | missed)
        status[new] = np.where(met, 1, -1)[new]
        pairs[new] = n
    return status, pairs


def _spread(x: np.ndarray) -> np.ndarray:
    """Return ``judge.correlation_spread`` of each row."""
    n = x.shape[1]
    if n < judge.CORRELATED_LOOK:
        return np.ones(len(x))
    off = x - x.mean(1, keepdims=True)
    total = (off * off).sum(1)
    lag = (off[:, 1:] * off[:, :-1]).sum(1) / np.where(total, total, 1.0)
    r = np.minimum(lag + judge.LAG_BIAS / n, judge.MOST_CORRELATED)
    wide = np.sqrt((1 + r) / (1 - r))
    return np.where((total > 0) & (r > judge.UNCORRELATED), wide, 1.0)


def _trend_loss(x: np.ndarray, horizon: int) -> np.ndarray:
    n = x.shape[1]
    place = np.arange(n) - (n - 1) / 2
    line = x @ place / (place @ place)
    rest = x - x.mean(1, keepdims=True) - line[:, None] * place
    error = np.sqrt((rest**2).sum(1) / (n - 2) / (place @ place))
    falls = line + stdtrit(n - 2, 1 - judge.TREND_ALPHA) * error < 0
    return np.where(falls, -line * (horizon - n) / 2, 0.0)


def simulate(true: float, noise: Noise, sd: float, runs: int, seed: int = 1) -> Rates:
    """Simulate many runs with one true efficiency."""
    rng = np.random.default_rng(seed)
    off = math.log(true / BOUND)

    def draw() -> np.ndarray:
        return off + noise(rng, (runs, LOOKS[-1]), sd)

    return _rates(draw)


def _rates(draw: Callable[[], np.ndarray]) -> Rates:
    (status, pairs), (again, _) = decide(draw()), decide(draw())
    failed = status == -1
    return Rates(
        runs=len(status), passed=float((status == 1).mean()), failed=float(failed.mean()),
        confirmed=float((failed & (again == -1)).mean()), pairs=float(pairs.mean()),
    )  # fmt: skip


def packed(slowdown: float, true: float, sd: float, runs: int, seed: int = 1) -> Rates:
    """Simulate runs whose baselines are slower, by ``slowdown`` (log), while other worlds run.

    Probes measure the slowdown. If it is significant, worlds run one by one.
    """
    rng = np.random.default_rng(seed)
    many = np.arange(1, biases.PROBES + 1)
    of_one = sd / math.sqrt(2)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        alone = rng.normal(0, of_one, (runs, biases.PROBES)).cumsum(1) / many
        beside = rng.normal(0, of_one / math.sqrt(PROBED), (runs, 1))
        seen, error = slowdown + alone + beside, of_one * np.sqrt(1 / many + 1 / PROBED)
        apart = seen[:, 0] > max(biases.LEAST_SLOWDOWN, biases.CLEAR * error[0])
        taken = -np.expm1(-np.maximum(0.0, seen + biases.UPPER * error))
        logs = math.log(true / BOUND) + rng.normal(0, sd, (runs, LOOKS[-1]))
        logs[:, :BESIDE] += np.where(apart, 0.0, slowdown)[:, None]
        return decide(logs, np.where(apart[:, None], 0.0, taken))

    (status, pairs), again = draw(), decide(math.log(true / BOUND) + rng.normal(0, sd, (runs, 16)))
    failed = status == -1
    return Rates(
        runs=runs, passed=float((status == 1).mean()), failed=float(failed.mean()),
        confirmed=float((failed & (again[0] == -1)).mean()), pairs=float(pairs.mean()),
    )  # fmt: skip


@functools.cache
def places(world: int, drawn: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of a world and of its baseline on one node: (runs, turns, nodes), 0 or 1.

    The shipped code draws them. Without ``drawn`` both stay on the first nodes, as with an engine
    that fixes placements.
    """
    site = Site(device=Device.CPU, backend="gloo", nodes=(1,) * NODES)
    case = site.case("ddp/mlp-nano")
    arms = {"plain": case.at(1, (1,)), f"@{world}": case.at(world, (1,) * world)}
    slots = packing.slots(list(arms.values()), site.nodes)
    out = np.zeros((2, DRAWN, LOOKS[-1], NODES), bool)
    for seed in range(DRAWN):
        for turn in range(LOOKS[-1]):
            for slot in slots:
                names = tuple(list(arms)[i] for i in sorted(slot))
                for name, seat in _seated(seed, turn, {n: arms[n] for n in names}, drawn):
                    out[int(name == "plain"), seed, turn, list(seat.hosts)] = True
    return out[0], out[1]


def _seated(
    seed: int, turn: int, arms: dict[str, CaseSpec], drawn: bool
) -> Iterator[tuple[str, packing.Placement]]:
    draw = packing.lot(seed, "timed", 0, turn, tuple(arms)) if drawn else None
    seats = packing.seats(list(arms.values()), (1,) * NODES, draw)
    assert seats is not None
    yield from zip(arms, seats, strict=True)


def placed(
    world: int, drawn: bool, slower: float, stay: float, off: float, runs: int, seed: int = 1
) -> Rates:
    """Simulate runs on nodes of which half are slower.

    A slow node remains slow until the next turn with probability ``stay``. A world is as slow as
    its slowest node. The bound is ``off`` below the true ratio over all nodes and times.
    """
    rng = np.random.default_rng(seed)
    subject, baseline = places(world, drawn)
    tiles = -(-runs // DRAWN)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        half = np.arange(NODES) % 2 == 0
        slow_now = rng.permuted(np.tile(half, (tiles, DRAWN, 1)), axis=-1)
        speeds = np.empty((2, tiles, DRAWN, LOOKS[-1]))
        for turn in range(LOOKS[-1]):
            for i, where in enumerate((subject, baseline)):
                hit = (slow_now & where[None, :, turn]).any(-1)
                speeds[i, ..., turn] = np.where(hit, 1 / (1 + slower), 1.0)
            moved = rng.random(slow_now.shape) > stay
            slow_now = np.where(moved, ~slow_now, slow_now)
        return speeds[0].reshape(-1, LOOKS[-1]), speeds[1].reshape(-1, LOOKS[-1])

    hidden = math.comb(NODES // 2, world) / math.comb(NODES, world) if stay == 1 else 0.5**world
    mean = hidden + (1 - hidden) / (1 + slower)
    truth = math.log(mean / (0.5 + 0.5 / (1 + slower)))

    def logs() -> np.ndarray:
        mine, theirs = draw()
        noise = rng.normal(0, 0.003, mine.shape)
        return np.asarray(np.log(mine / theirs) - truth + off + noise)

    return _rates(logs)


def world() -> list[tuple[str, np.ndarray]]:
    """Return the name and the throughputs of the replicated launches of each system and benchmark."""
    cells = json.loads(Path(__file__).with_name("launch_noise.json").read_text())["cells"]
    names = (f"{c['org']} {c['system']} {c['benchmark']}" for c in cells)
    return [(n, 1 / np.array(c["launches"])) for n, c in zip(names, cells, strict=True)]


def of_cell(rates: np.ndarray, true: float, runs: int, seed: int, in_time: bool) -> Rates:
    """Simulate runs whose launches of the subject are drawn from one cell; the baseline has 0.03 %
    noise.

    ``in_time`` draws sequences of successive launches, of five on average.
    """
    rng, size = np.random.default_rng(seed), (runs, LOOKS[-1])

    def draw() -> np.ndarray:
        place = rng.integers(0, len(rates), size)
        if in_time:
            fresh = rng.random(size) < 0.2
            for i in range(1, size[1]):
                after = (place[:, i - 1] + 1) % len(rates)
                place[:, i] = np.where(fresh[:, i], place[:, i], after)
        subject = np.log(rates[place] / rates.mean())
        return np.asarray(math.log(true / BOUND) + subject + rng.normal(0, 0.0003, size))

    return _rates(draw)


def lines(runs: int) -> Iterator[str]:
    """Yield the tables in Markdown."""
    head = "PASS % | FAIL % | FAIL reported % | undecided % | mean pairs |"
    rule = "|---|---|---|---|---|---|---|"
    yield f"\nNormal noise, bound 0.85:\n\n| deviation % | true value | {head}\n{rule}"
    for sd in SDS:
        for true in (0.75, 0.80, 0.83, 0.84, 0.85, 0.86, 0.87, 0.90, 0.95):
            yield _row(f"{100 * sd:g} | {true:.2f}", simulate(true, normal, sd, runs))
    wide = "".join(f" {100 * sd:g} % |" for sd in SDS)
    for title, what in (("PASS", "passed"), ("FAIL reported", "confirmed")):
        yield f"\n{title} in % of runs, with the true mean exactly on the bound:\n"
        yield f"| noise, deviation |{wide}\n|---|{'---|' * len(SDS)}"
        for name, noise in (DECLARED | BEYOND).items():
            simulated = (getattr(simulate(BOUND, noise, sd, runs), what) for sd in SDS)
            yield f"| {name} |" + "".join(f" {100 * share:.1f} |" for share in simulated)
    yield "\nConcurrent worlds that slow a baseline:\n"
    yield "| slower by % | deviation % | PASS on the bound % | PASS 2 points above % | mean pairs |"
    yield "|---|---|---|---|---|"
    for slowdown in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
        for sd in SDS[1:4]:
            on, above = (packed(slowdown, true, sd, runs) for true in (BOUND, BOUND + 0.02))
            yield (
                f"| {100 * slowdown:g} | {100 * sd:g} | {100 * on.passed:.1f} |"
                f" {100 * above.passed:.1f} | {above.pairs:.1f} |"
            )
    yield from _placed(runs)
    yield from _world(runs)


def _placed(runs: int) -> Iterator[str]:
    yield f"\nHalf of {NODES} nodes slower, a deviation of 0.3 %:\n"
    yield (
        "| nodes | places | nodes of a world | PASS 2 points below % | PASS on the bound %"
        " | FAIL reported on it % | PASS 5 points above % | mean pairs |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, (slower, stay) in PLACED.items():
        for drawn in (True, False):
            for world in WORLDS:
                below, on, above = (
                    placed(world, drawn, slower, stay, off, runs) for off in (-0.02, 0.0, 0.05)
                )
                yield (
                    f"| {name} | {'drawn' if drawn else 'pinned'} | {world}"
                    f" | {100 * below.passed:.1f} | {100 * on.passed:.1f}"
                    f" | {100 * on.confirmed:.1f} | {100 * above.passed:.1f} | {on.pairs:.1f} |"
                )


def _world(runs: int) -> Iterator[str]:
    cells = world()
    yield f"\nThe noise of published launches, {len(cells)} cells of MLPerf Training v5.0:\n"
    yield "| launches drawn | true value | cells with a wrong PASS above 5 % | with a wrong FAIL"
    yield "| PASS % (mean) | FAIL reported % (mean) | pairs, median cell | 90th percentile |"
    yield "|---|---|---|---|---|---|---|---|"
    for in_time in (False, True):
        for true in (0.80, 0.83, 0.85, 0.87, 0.90):
            simulated = [of_cell(x, true, runs, i, in_time) for i, (_, x) in enumerate(cells)]
            passed, failed = (
                np.array([getattr(r, what) for r in simulated]) for what in ("passed", "confirmed")
            )
            wrong_pass, wrong_fail = (passed > 0.05).sum(), (failed > 0.05).sum()
            pairs = [r.pairs for r in simulated]
            yield (
                f"| {'in time' if in_time else 'by chance'} | {true:.2f}"
                f" | {wrong_pass if true <= BOUND else ''} | {wrong_fail if true >= BOUND else ''}"
                f" | {100 * passed.mean():.1f} | {100 * failed.mean():.1f}"
                f" | {np.quantile(pairs, 0.5):.1f} | {np.quantile(pairs, 0.9):.1f} |"
            )


def _row(name: str, r: Rates) -> str:
    undecided = 1 - r.passed - r.failed
    return (
        f"| {name} | {100 * r.passed:.1f} | {100 * r.failed:.1f} | {100 * r.confirmed:.1f}"
        f" | {100 * undecided:.1f} | {r.pairs:.1f} |"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    for line in lines(parser.parse_args().runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
