"""Measure how often slow nodes are named, missed or named wrongly.

    python benchmarks/experiments/slow_nodes.py [--worlds 100]     # simulated launches
    python benchmarks/experiments/slow_nodes.py --clusters 2       # the table of docs/operations.md
    python benchmarks/experiments/slow_nodes.py --real 20          # 16 emulated nodes

A launch on a pair of nodes takes as long as its slower node needs, times the noise of a published
launch. The noise is drawn from all systems and benchmarks for each launch (``of all``), or always
from the same one (``of one``), as on one cluster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from harness.cases import Catalogue, Device, Settings, Site
from harness.cases.targets import case_of
from harness.features.nodes import rounds
from harness.features.nodes.pairing import Pairer, words
from harness.features.nodes.rounds import TimedPair
from harness.measure.progress import Progress
from harness.measure.session import Session

#: A function that returns the times of a number of launches, relative to the usual time.
Noise = Callable[[np.random.Generator, int], np.ndarray]
ROUNDS = rounds.MOST_ROUNDS


def cells() -> list[np.ndarray]:
    """Return the times of the launches of each system and benchmark, divided by their median."""
    document = json.loads(Path(__file__).with_name("launch_noise.json").read_text())["cells"]
    times = (np.array(c["launches"]) for c in document)
    # Times that are rounded to one digit have too few different values.
    return [x / np.median(x) for x in times if len({*x}) > 2]


def pooled() -> Noise:
    every = np.concatenate(cells())
    return lambda rng, n: np.asarray(rng.choice(every, n))


def normal(sd: float) -> Noise:
    return lambda rng, n: np.asarray(np.exp(rng.normal(0, sd, n)))


def between(count: int, of: int) -> str:
    """Return text like ``60 of 60 [94.0, 100] %`` with a two-sided 95 % interval (Clopper and
    Pearson).
    """
    low = stats.beta.ppf(0.025, count, of - count + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, of - count) if count < of else 1.0
    return f"{count} of {of} [{100 * low:.1f}, {100 * high:.1f}] %"


@dataclass(frozen=True)
class Told:
    """The result of one world: its slow nodes and links, those that were named, and the number of
    rounds until they were named.
    """

    planted: frozenset[tuple[int, ...]]
    named: frozenset[tuple[int, ...]]
    rounds: int
    node_launches: int


def play(
    num_nodes: int, slow: Mapping[tuple[int, ...], float], noise: Noise, seed: int,
    most: int = ROUNDS,
) -> Told:  # fmt: skip
    """Simulate rounds of one world until nothing is left to find. ``slow`` maps nodes and links to
    their slowdown.
    """
    rng, seen, last = np.random.default_rng(seed), list[TimedPair](), 0
    named = frozenset[tuple[int, ...]]()
    for number in range(most):
        chosen = rounds.pairs(seen, num_nodes, seed)
        if not chosen:
            break
        for (a, b), more in zip(chosen, noise(rng, len(chosen)), strict=True):
            slower = (slow.get(k, 0.0) for k in ((a,), (b,), (min(a, b), max(a, b))))
            seen.append(TimedPair(a, b, number, float(more) * (1 + max(slower))))
        now = frozenset(slow_node.nodes for slow_node in rounds.conclude(seen, num_nodes))
        last, named = (last, named) if now == named else (number + 1, now)
    return Told(frozenset(slow), named, last, 2 * len(seen))


def lines(worlds: int) -> Iterator[str]:
    """Yield the table in Markdown, each row as soon as it is complete."""
    yield "| nodes | slow | noise | missed | wrong name | rounds, mean (most) | node-launches |"
    yield "|---|---|---|---|---|---|---|"
    of_cells, every = cells(), pooled()
    for nodes, of in ((16, worlds), (64, worlds), (1024, 2 * worlds // 5)):
        for slower in (0.0, 0.02, 0.05):
            yield _row(nodes, slower, "of all", lambda seed: every, of)
            yield _row(
                nodes, slower, "of one", lambda seed: _of(of_cells[seed % len(of_cells)]), of
            )


def of_clusters(worlds: int) -> Iterator[str]:
    """Yield a table in Markdown for worlds with one slow node or none, with the noise of each
    cluster.
    """
    yield "| nodes | slow | worlds | missed | missed in 8 rounds | wrong name | rounds | launches |"
    yield "|---|---|---|---|---|---|---|---|"
    noises = [_of(cell) for cell in cells()]
    for nodes, slower in itertools.product((16, 64, 1024), (0.0, 0.02)):
        listed = []
        for seed in range(worlds * len(noises)):
            bad = int(np.random.default_rng(seed).integers(nodes))
            slow = {(bad,): slower} if slower else {}
            listed.append(play(nodes, slow, noises[seed % len(noises)], seed))
        missed = [bool(t.planted - t.named) for t in listed]
        late = [lost or t.rounds > 8 for lost, t in zip(missed, listed, strict=True)]
        rounds_ = [t.rounds for t, lost in zip(listed, missed, strict=True) if not lost]
        shares = (between(sum(count), len(listed)) if slower else "" for count in (missed, late))
        wrong = between(sum(bool(t.named - t.planted) for t in listed), len(listed))
        yield (
            f"| {nodes:,} | {f'{slower:.0%}' if slower else 'none'} | {len(listed)} |"
            f" {' | '.join(shares)} | {wrong} |"
            f" {f'{np.mean(rounds_):.1f} ({max(rounds_)})' if slower else ''} |"
            f" {np.mean([t.node_launches for t in listed]):,.0f} |"
        )


def _row(nodes: int, slower: float, name: str, noise: Callable[[int], Noise], worlds: int) -> str:
    """Return the row of worlds with one to three slow nodes, at most one in 16."""
    listed = []
    for seed in range(worlds):
        rng = np.random.default_rng(seed)
        most = min(3, nodes // 16)
        bad = rng.choice(nodes, int(rng.integers(1, most + 1)), replace=False) if slower else []
        listed.append(play(nodes, {(int(b),): slower for b in bad}, noise(seed), seed))
    planted = sum(len(t.planted) for t in listed)
    missed = sum(len(t.planted - t.named) for t in listed)
    wrong = sum(bool(t.named - t.planted) for t in listed)
    taken = [t.rounds for t in listed if t.planted and t.planted <= t.named]
    launches = np.mean([t.node_launches for t in listed])
    return (
        f"| {nodes:,} | {f'{slower:.0%}' if slower else 'none'} | {name} |"
        f" {f'{missed / planted:.1%}' if planted else ''} | {wrong / worlds:.1%} |"
        f" {f'{np.mean(taken):.1f} ({max(taken)})' if taken else ''} | {launches:,.0f} |"
    )


def real(worlds: int) -> Iterator[str]:
    """Measure 16 emulated nodes on this machine, one of which has only 0.95 to 0.98 of a core."""
    known, nodes, right = Catalogue(), 16, 0
    site = Site(
        device=Device.CPU, backend="gloo", nodes=(1,) * nodes, engine="emulated", emulated=True
    )
    settings = Settings(engine="emulated", nodes=site.nodes, fabric=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(known, settings, Path(folder), (), Progress()) as session,
    ):
        for seed in range(worlds):
            rng = np.random.default_rng(seed)
            bad, share = int(rng.integers(nodes)), float(rng.choice([0.95, 0.96, 0.97, 0.98]))
            asked = {
                "stragglers": f"n{bad}:{share:g}", "paced.mode": "schedule",
                "paced.step_ms": 100.0, "paced.noise": 0.0035, "seed": seed,
            }  # fmt: skip
            case = known.normalise(case_of("ddp/paced-small", site, asked).at(2, (1, 1)))
            suspects = Pairer(session, site, ROUNDS).train(case)
            named = suspects.nodes == (f"node {bad}",) and not suspects.links
            right += named
            slow = ", ".join(words(slow_node) for slow_node in suspects.slow) or "nothing is named"
            rounds_ = 1 + max(p.round for p in suspects.pairs)
            yield f"node {bad} at {share:g}: {slow}, {rounds_} rounds{'' if named else '  WRONG'}"
    yield f"{right} of {worlds} named, and nothing else"


def _of(cell: np.ndarray) -> Noise:
    return lambda rng, n: np.asarray(rng.choice(cell, n))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--clusters", type=int, default=0, help="worlds for each noise level")
    parser.add_argument("--real", type=int, default=0, help="worlds of real processes")
    asked = parser.parse_args()
    table = of_clusters(asked.clusters) if asked.clusters else lines(asked.worlds)
    for line in real(asked.real) if asked.real else table:
        print(line, flush=True)
