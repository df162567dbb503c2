"""What is told of nights that depend on each other, drift, or come and go.

    python tests/acceptance/nights.py [--series 300]     # a minute

Every class of noise has series of 60 nights without a change and as many with a step of +3 % at a night
of 20 to 47. ``false``: series in which a change is told where there is none. ``found``: a step up is told;
``asked`` beside either: the change is left unconfirmed, since nights depend on each other and nobody knows
their nodes. ``near``: of all steps that were seen, those dated within 2 nights. Nothing here is used by the
detector.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping

import numpy as np

from harness.features.history import scan

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


def kept_node(random: Random, shortest: int, longest: int) -> Array:
    """One of three nodes, kept for some nights."""
    levels = list[float]()
    while len(levels) < NIGHTS:
        level = random.choice([-0.01, 0.0, 0.015])
        levels += [level] * int(random.integers(shortest, longest + 1))
    return random.normal(0, 0.005, NIGHTS) + levels[:NIGHTS]


def quantised(random: Random, unit: float) -> Array:
    return np.round(random.normal(0, 0.01, NIGHTS) / unit) * unit


INDEPENDENT: Mapping[str, Callable[[Random], Array]] = {
    "Gauss 1 %": lambda r: r.normal(0, 0.01, NIGHTS),
    "season of 7 nights": lambda r: season(r, 7),
    "1 night in 20 wild": wild,
    "steps of 1 %": lambda r: quantised(r, 0.01),
    "steps of 2 %": lambda r: quantised(r, 0.02),
    "Student t, 3": lambda r: 0.01 * r.standard_t(3, NIGHTS) / math.sqrt(3),
    "another of 3 nodes each night": lambda r: kept_node(r, 1, 1),
}
DEPENDENT: Mapping[str, Callable[[Random], Array]] = {
    "AR(1) 0.6": lambda r: ar1(r, 0.6, 0.01),
    "season of 30 nights": lambda r: season(r, 30),
    "random walk 0.2 % a night": lambda r: (
        np.cumsum(r.normal(0, 0.002, NIGHTS)) + r.normal(0, 0.005, NIGHTS)
    ),
    "a node kept 5 to 20 nights": lambda r: kept_node(r, 5, 20),
}


def row(name: str, noise: Callable[[Random], Array], count: int) -> str:
    random = np.random.default_rng(47)
    false = np.zeros(2)
    found = np.zeros(2)
    near = 0
    for _ in range(count):
        x = noise(random)
        false[_asked(x)] += bool(scan.changes(x, FLOOR))
        x = noise(random)
        at = int(random.integers(20, 48))
        x[at:] += STEP
        ups = [c.at for c in scan.changes(x, FLOOR) if c.size.by > 0]
        found[_asked(x)] += bool(ups)
        near += any(abs(up - at) <= NEAR for up in ups)
    cells = [f"{share:.2f}" for share in (*(false / count), *(found / count))]
    return f"| {name} | {' | '.join(cells)} | {near / max(1, found.sum()):.2f} |"


def _asked(x: Array) -> int:
    """Whether a change of these nights has to be confirmed elsewhere before it is told."""
    return int(scan.dependence(x) > 0)


def drifts(by: float, sd: float, count: int) -> str:
    """How often a drift is called one, and how often a step with a night."""
    random = np.random.default_rng(48)
    series = [np.linspace(0, by, NIGHTS) + random.normal(0, sd, NIGHTS) for _ in range(count)]
    called = sum(scan.drift(list(x), FLOOR) is not None for x in series)
    steps = sum(bool(scan.changes(list(x), FLOOR)) for x in series)
    return f"| {by:.0%} in 60 nights, sd {sd:.0%} | {called / count:.2f} | {steps / count:.2f} |"


def named_nodes(count: int) -> str:
    """The node that is kept, where nights say which it was."""
    random = np.random.default_rng(50)
    false = found = 0
    for _ in range(count):
        names = list[str]()
        while len(names) < NIGHTS:
            names += [str(random.choice(["a", "b", "c"]))] * int(random.integers(5, 21))
        names = names[:NIGHTS]
        levels = np.array([{"a": -0.01, "b": 0.0, "c": 0.015}[name] for name in names])
        x = levels + random.normal(0, 0.005, NIGHTS)
        false += bool(scan.changes(x, FLOOR, nodes=names))
        x[int(random.integers(20, 48)) :] += STEP
        found += any(c.size.by > 0 for c in scan.changes(x, FLOOR, nodes=names))
    cells = f"{false / count:.2f} | | {found / count:.2f} | | |"
    return f"| a node kept 5 to 20 nights, named | {cells}"


def came_and_went(by: float, length: int, count: int) -> str:
    """How often both ends of a level that came and went are kept."""
    random = np.random.default_rng(49)
    kept = 0
    for _ in range(count):
        x = random.normal(0, 0.01, NIGHTS)
        at = int(random.integers(15, 36))
        x[at : at + length] += by
        nights = [c.at for c in scan.changes(list(x), FLOOR)]
        kept += all(any(abs(n - end) <= NEAR for n in nights) for end in (at, at + length))
    return f"| {by:+.0%} for {length} nights | {kept / count:.2f} |"


def main(count: int) -> None:
    print("| noise | false | asked | found | asked | near |")
    print("|---|---|---|---|---|---|")
    for name, noise in {**INDEPENDENT, **DEPENDENT}.items():
        print(row(name, noise, count), flush=True)
    print(named_nodes(count // 2), flush=True)
    print("\n| drift | called a drift | called a step |\n|---|---|---|")
    for by, sd in ((0.05, 0.01), (0.05, 0.02), (0.02, 0.01)):
        print(drifts(by, sd, count // 2))
    print("\n| came and went | kept |\n|---|---|")
    for by, length in ((0.04, 10), (0.04, 20), (0.08, 4)):
        print(came_and_went(by, length, count // 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=300)
    main(parser.parse_args().series)
