"""Measure what the detector of changes reports for nightly runs with many kinds of noise.

    python -m benchmarks.experiments.nights [--series 300] [--seed 2026]     # three minutes

For each kind of noise there are series of 60 nights without a change, and as many with a step of +3
% at a night from 20 to 47. ``trends`` judges them like any history. ``false`` is the share of
series without a step in which a change is reported. ``found`` is the share in which a step up is
reported. ``asked`` next to either is the share in which a change is unconfirmed, so no alarm is
raised and no cause is named. ``near`` is the share of reported steps whose date is within 2 nights.

The detector does not use anything of this file. Its limits were set with other seeds, before the
kinds of noise that are called unseen were written. ``one change`` is about series without a step in
which the noise itself changed its level once, by 1 % or more, and stayed there. No detector can
distinguish these from a step of that size by the values alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from harness.features.history import scan
from harness.features.history.trends import Trend, TrendStatus, trends
from tests.nights import CASE, night

NIGHTS, NEAR, FLOOR, STEP = 60, 2, math.log1p(0.01), math.log(1.03)
Array = np.ndarray
Random = np.random.Generator


def ar1(random: Random, correlation: float, sd: float) -> Array:
    x = random.normal(0, sd, NIGHTS)
    for i in range(1, NIGHTS):
        x[i] = correlation * x[i - 1] + math.sqrt(1 - correlation**2) * x[i]
    return x


def wild(random: Random) -> Array:
    struck = random.random(NIGHTS) < 0.05
    return random.normal(0, 0.01, NIGHTS) + struck * random.uniform(0.1, 0.4, NIGHTS)


def season(random: Random, period: int) -> Array:
    phase = random.uniform(0, 2 * math.pi)
    wave = 0.01 * np.sin(2 * math.pi * np.arange(NIGHTS) / period + phase)
    return random.normal(0, 0.005, NIGHTS) + wave


def quantised(random: Random, unit: float) -> Array:
    return np.round(random.normal(0, 0.01, NIGHTS) / unit) * unit


def garch(random: Random) -> Array:
    """Return noise whose deviation persists: GARCH(1, 1) with 1 % in the long run."""
    x = np.zeros(NIGHTS)
    variance = 1e-4
    for i in range(NIGHTS):
        x[i] = math.sqrt(variance) * random.normal()
        variance = 0.05 * 1e-4 + 0.25 * x[i] ** 2 + 0.7 * variance
    return x


def two_states(random: Random) -> Array:
    """Return noise of a machine that is 1.5 % slower for some time, for 12 nights on average."""
    changed = random.random(NIGHTS) < 1 / 12
    state = (np.cumsum(changed) + random.integers(2)) % 2
    return random.normal(0, 0.005, NIGHTS) + 0.015 * state


def weekdays(random: Random) -> Array:
    of_day = random.normal(0, 0.01, 7)
    return of_day[np.arange(NIGHTS) % 7] + random.normal(0, 0.005, NIGHTS)


def moving_average(random: Random) -> Array:
    """Return noise in which each night contains a part of the three previous nights."""
    shocks = random.normal(0, 0.005, NIGHTS + 3)
    return np.convolve(shocks, np.ones(4), "valid")


def arma(random: Random) -> Array:
    shocks = random.normal(0, 0.008, NIGHTS + 50)
    x = np.zeros(NIGHTS + 50)
    for i in range(1, NIGHTS + 50):
        x[i] = 0.9 * x[i - 1] + shocks[i] - 0.5 * shocks[i - 1]
    return x[50:]


def waves(random: Random) -> Array:
    """Return AR(2) noise with complex roots: waves that lose their phase."""
    x = np.zeros(NIGHTS + 50)
    for i in range(2, NIGHTS + 50):
        around = 2 * 0.85 * math.cos(2 * math.pi / 12) * x[i - 1] - 0.85**2 * x[i - 2]
        x[i] = around + random.normal(0, 0.005)
    return x[50:]


def saw_teeth(random: Random) -> Array:
    """Return noise of a machine that becomes slower by 0.1 % per night until it is restarted."""
    x = list[float]()
    while len(x) < NIGHTS:
        x += [0.001 * i for i in range(int(random.integers(10, 21)))]
    return random.normal(0, 0.005, NIGHTS) + x[:NIGHTS]


def restless(random: Random) -> Array:
    deviation = 0.01 * np.exp(np.cumsum(random.normal(0, 0.15, NIGHTS)))
    return random.normal(0, 1, NIGHTS) * deviation


INDEPENDENT: Mapping[str, Callable[[Random], Array]] = {
    "Gauss 1 %": lambda r: r.normal(0, 0.01, NIGHTS),
    "season of 7 nights": lambda r: season(r, 7),
    "1 night in 20 wild": wild,
    "steps of 1 %": lambda r: quantised(r, 0.01),
    "steps of 2 %": lambda r: quantised(r, 0.02),
    "Student t, 3": lambda r: 0.01 * r.standard_t(3, NIGHTS) / math.sqrt(3),
}
DEPENDENT: Mapping[str, Callable[[Random], Array]] = {
    "AR(1) 0.6": lambda r: ar1(r, 0.6, 0.01),
    "season of 30 nights": lambda r: season(r, 30),
    "random walk 0.2 % a night": lambda r: (
        np.cumsum(r.normal(0, 0.002, NIGHTS)) + r.normal(0, 0.005, NIGHTS)
    ),
}
OTHERS: Mapping[str, Callable[[Random], Array]] = {
    "GARCH(1, 1) of 1 %": garch,
    "days of the week": weekdays,
    "AR(1) 0.8": lambda r: ar1(r, 0.8, 0.01),
    "moving average of 4": moving_average,
    "walk 0.3 %, no noise": lambda r: np.cumsum(r.normal(0, 0.003, NIGHTS)),
    "two states of one machine": two_states,
}
UNSEEN: Mapping[str, Callable[[Random], Array]] = {
    "ARMA(1, 1) 0.9, -0.5": arma,
    "AR(2), waves of 12 nights": waves,
    "saw teeth of 10 to 20 nights": saw_teeth,
    "noise whose deviation walks": restless,
}
#: For each kind of series on several nodes: the fewest and the most successive nights on one node,
#: and whether the node is recorded.
NODES = {
    "another of 3 nodes each night": (1, 1, True),
    "a node kept 5 to 20 nights": (5, 20, True),
    "another of 3 each night, unnamed": (1, 1, False),
    "a node kept 5 to 20 nights, unnamed": (5, 20, False),
}
#: The share by which each node is slower.
OF_NODE = {"a": -0.01, "b": 0.0, "c": 0.015}


def on_one_node(noise: Callable[[Random], Array], random: Random) -> tuple[Array, list[str]]:
    return noise(random), ["a"] * NIGHTS


def of_nodes(shortest: int, longest: int, named: bool, random: Random) -> tuple[Array, list[str]]:
    """Return a series on one of three nodes, each used for some nights, and the nodes if they are
    recorded.
    """
    names = list[str]()
    while len(names) < NIGHTS:
        names += [str(random.choice([*OF_NODE]))] * int(random.integers(shortest, longest + 1))
    names = names[:NIGHTS]
    x = random.normal(0, 0.005, NIGHTS) + [OF_NODE[name] for name in names]
    return x, names if named else [""] * NIGHTS


def judged(x: Array, names: list[str]) -> Trend:
    steps = zip(x, names, strict=True)
    nights = [night(i, {CASE: 0.1 * math.exp(v)}, nodes=n) for i, (v, n) in enumerate(steps)]
    return trends(nights)[0]


def row(
    name: str, noise: Callable[[Random], tuple[Array, list[str]]], count: int, seed: int
) -> str:
    random = np.random.default_rng(seed)
    false = np.zeros(2)
    counts = np.zeros(2)
    near = 0
    alarms = (TrendStatus.REGRESSED, TrendStatus.IMPROVED)
    for _ in range(count):
        trend = judged(*noise(random))
        false += [trend.status in alarms, trend.status is TrendStatus.UNCONFIRMED]
        x, names = noise(random)
        at = int(random.integers(20, 48))
        x[at:] += STEP
        trend = judged(x, names)
        if trend.last is None or trend.last.size < 0:
            continue
        seen = [trend.status in alarms, trend.status is TrendStatus.UNCONFIRMED]
        counts += seen
        near += any(seen) and any(abs(turn.index - at) <= NEAR for turn in trend.turns)
    cells = [f"{share:.2f}" for share in (*(false / count), *(counts / count))]
    return f"| {name} | {' | '.join(cells)} | {near / max(1, counts.sum()):.2f} |"


def one_change(count: int, seed: int) -> str:
    """Return how often noise that changes its own level has one such change and no other."""
    random = np.random.default_rng(seed)
    once = np.zeros(2)
    for _ in range(count):
        _, names = of_nodes(5, 20, True, random)
        state = (random.random(NIGHTS) < 1 / 12)[1:]
        changes = [i for i in range(1, NIGHTS) if names[i] != names[i - 1]]
        states = [i for i in range(1, NIGHTS) if state[i - 1]]
        for j, nights in enumerate((changes, states)):
            once[j] += (
                len(nights) == 1 and scan.FEWEST_NIGHTS <= nights[0] <= NIGHTS - scan.FEWEST_NIGHTS
            )
    node, states_of_one = once / count
    return (
        f"one change by the noise itself: {node:.2f} of series on nodes that are kept,"
        f" {states_of_one:.2f} of those with two states"
    )


def knowing_walks(count: int, seed: int) -> str:
    """Return how many steps in independent nights the best possible detector finds.

    It knows the random walk exactly, and compares the likelihood of a step at the best night with
    that of the walk. It reports a step falsely in 2 % of such walks.
    """
    random = np.random.default_rng(seed)
    night = np.arange(NIGHTS)
    walk = np.eye(NIGHTS) + 0.16 * (np.minimum(night[:, None], night) + 1)
    root = np.linalg.cholesky(walk)
    white = np.linalg.inv(root)
    level = white.sum(axis=1)
    after = np.arange(scan.FEWEST_NIGHTS, NIGHTS - scan.FEWEST_NIGHTS + 1)

    def over_walk(x: Array) -> float:
        turned = white @ x
        turned = turned - level * (level @ turned) / (level @ level)
        of_walk = -np.log(np.diag(root)).sum() - math.log(level @ level) / 2
        of_walk -= (NIGHTS - 1) / 2 * math.log(turned @ turned)
        centred = x - x.mean()
        sums = np.cumsum(centred)[after - 1]
        left = centred @ centred - sums**2 * NIGHTS / (after * (NIGHTS - after))
        of_step = -math.log(NIGHTS) / 2 - (NIGHTS - 1) / 2 * math.log(left.min())
        return float(of_step - of_walk)

    noise = DEPENDENT["random walk 0.2 % a night"]
    limit = np.quantile([over_walk(noise(random)) for _ in range(4 * count)], 0.98)
    detected = 0
    for _ in range(count):
        x = random.normal(0, 0.01, NIGHTS)
        x[int(random.integers(20, 48)) :] += STEP
        detected += over_walk(x) >= limit
    return (
        "a detector that knows the walk, with 2 % false reports, finds"
        f" {detected / count:.2f} in Gauss 1 %"
    )


def drifts(by: float, sd: float, count: int) -> str:
    """Return how often a drift is reported as a drift, and how often as a step with a date."""
    random = np.random.default_rng(48)
    series = [np.linspace(0, by, NIGHTS) + random.normal(0, sd, NIGHTS) for _ in range(count)]
    called = sum(scan.drift(list(x), FLOOR) is not None for x in series)
    steps = sum(any(c.certain for c in scan.changes(list(x), FLOOR)[-1:]) for x in series)
    return f"| {by:.0%} in 60 nights, sd {sd:.0%} | {called / count:.2f} | {steps / count:.2f} |"


def came_and_went(by: float, length: int, count: int) -> str:
    """Return how often both ends of a temporary change of level are found."""
    random = np.random.default_rng(49)
    kept = 0
    for _ in range(count):
        x = random.normal(0, 0.01, NIGHTS)
        at = int(random.integers(15, 36))
        x[at : at + length] += by
        nights = [c.at for c in scan.changes(list(x), FLOOR)]
        kept += all(any(abs(n - end) <= NEAR for n in nights) for end in (at, at + length))
    return f"| {by:+.0%} for {length} nights | {kept / count:.2f} |"


def main(count: int, seed: int) -> None:
    print("| noise | false | asked | found | asked | near |")
    print("|---|---|---|---|---|---|")
    for group, noises in (
        ("", {**INDEPENDENT, **DEPENDENT, **OTHERS}),
        ("unseen: ", UNSEEN),
    ):
        for name, noise in noises.items():
            print(row(group + name, partial(on_one_node, noise), count, seed), flush=True)
    for name, (shortest, longest, named) in NODES.items():
        print(row(name, partial(of_nodes, shortest, longest, named), count, seed), flush=True)
    print("\n" + one_change(20 * count, seed))
    print(knowing_walks(5 * count, seed))
    print("\n| drift | called a drift | called a step |\n|---|---|---|")
    for by, sd in ((0.05, 0.01), (0.05, 0.02), (0.02, 0.01)):
        print(drifts(by, sd, count // 2))
    print("\n| came and went | kept |\n|---|---|")
    for by, length in ((0.04, 10), (0.04, 20), (0.08, 4)):
        print(came_and_went(by, length, count // 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--seed", type=int, default=2026)
    args = parser.parse_args()
    main(args.series, args.seed)
