"""Rounds of pairs find injected slow nodes and links, find nothing without any, and can be
replayed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.features.nodes import pairing, rounds
from harness.features.nodes.evidence import log_evidence
from harness.features.nodes.report import html, of_pairs
from harness.features.nodes.rounds import LEAST_SLOWER, MOST_ROUNDS, WANTED, Board, TimedPair
from harness.interface.report import screen
from harness.record import RunRecord
from harness.record.fabric import Paired, Suspects

#: Standard deviation of log times; three quarters of the world's clusters are steadier.
SD = 0.0035


def play(
    num_nodes: int, slow: Mapping[tuple[int, ...], float], seed: int, most: int = MOST_ROUNDS,
    sd: float = SD,
) -> list[TimedPair]:  # fmt: skip
    """Return the rounds of a world in which these nodes and links are slow."""
    draw, seen = random.Random(seed), list[TimedPair]()
    for number in range(most):
        drift = draw.gauss(1, 0.05)  # Every pair of a round shares this drift.
        for a, b in rounds.pairs(seen, num_nodes, seed):
            keys = ((a,), (b,), (min(a, b), max(a, b)))
            slower = 1 + max(slow.get(k, 0.0) for k in keys)
            noise = math.exp(draw.gauss(0, sd))
            seen.append(TimedPair(a, b, number, drift * slower * noise))
    return seen


def board(seen: list[TimedPair], num_nodes: int) -> Board:
    return rounds.board(tuple(seen), num_nodes, LEAST_SLOWER, WANTED * LEAST_SLOWER)


def named(seen: list[TimedPair], num_nodes: int) -> set[tuple[int, ...]]:
    return {slow.nodes for slow in rounds.conclude(seen, num_nodes)}


@pytest.mark.parametrize("seed", range(40))
def test_slow_nodes_are_named_and_no_others(seed: int) -> None:
    """Up to one node in 24 is slow. Others may be named in 1 of 100 runs; in 1,000 none was."""
    draw = random.Random(seed)
    num_nodes = draw.randint(24, 70)
    nodes = draw.sample(range(num_nodes), draw.randint(0, num_nodes // 24))
    slow = {(n,): 0.025 for n in nodes}
    assert named(play(num_nodes, slow, seed), num_nodes) == set(slow)


def test_a_thousand_nodes_and_one_that_is_5_percent_slow() -> None:
    """Three rounds suffice; after the first two, only suspected nodes are measured."""
    seen = play(1024, {(700,): 0.05}, seed=3, most=3)
    assert named(seen, 1024) == {(700,)}
    assert len([s for s in seen if s.round == 2]) < 300


@pytest.mark.parametrize("num_nodes", [3, 4, 5, 9])
def test_a_slow_node_of_few_is_named(num_nodes: int) -> None:
    assert named(play(num_nodes, {(1,): 0.3}, 1), num_nodes) == {(1,)}
    assert named(play(num_nodes, {}, 1), num_nodes) == set()


def test_a_slow_link_is_not_blamed_on_its_nodes() -> None:
    """The slow link is one that the first round measured; it is measured again and named."""
    (link, *_) = (tuple(sorted(pair)) for pair in rounds.pairs([], 32, 5))
    seen = play(32, {link: 0.1}, seed=5)
    assert named(seen, 32) == {link}
    assert sum(s.link == link for s in seen) > 1


@pytest.mark.parametrize("num_nodes", [3, 4, 6])
def test_a_slow_link_of_few_nodes(num_nodes: int) -> None:
    assert named(play(num_nodes, {(0, 2): 0.4}, 1), num_nodes) == {(0, 2)}


def test_a_slow_node_does_not_blame_its_partners() -> None:
    seen = play(16, {(2,): 0.5, (9,): 0.03}, seed=2)
    assert named(seen, 16) == {(2,), (9,)}


@pytest.mark.full
def test_random_slow_launches_name_no_node() -> None:
    """Every twentieth launch is 5 % slower on any node, which the scatter of all launches shows."""
    wrong = 0
    for seed in range(40):
        draw, seen = random.Random(seed), list[TimedPair]()
        for number in range(6):
            for a, b in rounds.pairs(seen, 64, seed):
                odd = 1.05 if draw.random() < 0.05 else 1.0
                seen.append(TimedPair(a, b, number, odd * math.exp(draw.gauss(0, SD))))
        wrong += bool(named(seen, 64))
    assert wrong <= 1


def test_without_slow_nodes_the_search_ends_early() -> None:
    """If nothing is slow, most searches end after the two full rounds."""
    seen = play(64, {}, seed=1, sd=0.001)
    assert {s.round for s in seen} == {0, 1} and len(seen) == 64


def test_the_evidence_is_an_e_value() -> None:
    """Its mean is at most 1 for nodes that are not slow, up to the error of the model."""
    rng = np.random.default_rng(1)
    told_ = []
    for _ in range(400):
        x = rng.normal(0, SD, 40)
        log, _ = log_evidence(x[:2], x[2:], 0.01)
        told_.append(math.exp(log))
    assert np.mean(told_) < 1.5


def _suspects() -> Suspects:
    hosts = tuple(f"n{i}" for i in range(16))
    seen = play(16, {(4,): 0.1}, seed=pairing.SEED)
    pairs = [Paired(a=hosts[s.a], b=hosts[s.b], round=s.round, time_s=s.time_s) for s in seen]
    return pairing.suspects_of(pairs, hosts, "ddp/decoder-nano", MOST_ROUNDS)


def test_the_search_can_be_replayed() -> None:
    suspects = _suspects()
    assert suspects.nodes == ("n4",) and "n4 is 9.9% slower" in pairing.words(suspects.slow[0])
    assert list(pairing.replayed(suspects, MOST_ROUNDS)) == []


def test_a_manipulated_search_is_found() -> None:
    """The manipulations are an omitted node, a pair made faster, and a round with other pairs."""
    suspects = _suspects()
    assert list(pairing.replayed(replace(suspects, nodes=()), MOST_ROUNDS))
    fast = [replace(p, time_s=1.0) if "n4" in (p.a, p.b) else p for p in suspects.pairs]
    assert list(pairing.replayed(replace(suspects, pairs=tuple(fast)), MOST_ROUNDS))
    assert list(pairing.replayed(replace(suspects, pairs=suspects.pairs[:-1]), MOST_ROUNDS))


def test_a_node_that_was_never_measured_is_reported() -> None:
    """Its launches failed; ``pairs`` reports this and does not pass."""
    suspects = _suspects()
    assert pairing.unseen(suspects) == ()
    broken = [replace(p, time_s=None) if "n7" in (p.a, p.b) else p for p in suspects.pairs]
    assert pairing.unseen(
        pairing.suspects_of(broken, suspects.hosts, suspects.case, MOST_ROUNDS)
    ) == ("n7",)
    assert pairing.unseen(replace(suspects, pairs=())) == suspects.hosts


@pytest.mark.full
def test_the_smallest_detectable_slowdown_is_reported() -> None:
    """A node with this slowdown, injected into other worlds with the same noise, is rarely missed."""
    quiet, wide = (
        board(play(64, {}, seed=1, sd=sd), 64).smallest(MOST_ROUNDS) for sd in (0.001, 0.01)
    )
    assert quiet is not None and quiet <= 0.0125
    assert wide is not None and 0.0125 < wide <= 0.03
    worlds = range(8)
    missed = [(5,) not in named(play(64, {(5,): wide}, seed, sd=0.01), 64) for seed in worlds]
    assert sum(missed) <= 1


@pytest.mark.full
def test_a_slowdown_of_twice_the_scatter_is_rarely_missed() -> None:
    """With a scatter of 1 %, a node that is 2 % slower is named in 99 % of worlds, and no other
    node is.
    """
    worlds = [named(play(32, {(5,): 0.02}, seed, sd=0.01), 32) for seed in range(30)]
    # If the rate is 99 %, fewer occur with a probability of 0.3 %.
    assert sum((5,) in nodes for nodes in worlds) >= 28
    assert sum(bool(nodes - {(5,)}) for nodes in worlds) <= 1


def test_the_number_of_rounds_depends_on_the_noise() -> None:
    """With little noise the search ends after two rounds; with more it continues for the undecided
    nodes.
    """
    quiet, noisy = (play(128, {}, seed=3, sd=sd) for sd in (0.002, 0.01))
    assert max(pair.round for pair in quiet) == 1
    per_round = np.bincount([pair.round for pair in noisy])
    assert per_round[4] == 64 and per_round[-1] < 32
    assert board(noisy, 128).open_nodes == [] and board(noisy, 128).shows(
        WANTED * LEAST_SLOWER, MOST_ROUNDS
    )


def test_nodes_that_are_undecided_after_the_last_round_are_reported() -> None:
    """Two rounds are too few to name the node, so it is reported as undecided; a record that omits
    it does not verify.
    """
    seen = play(16, {(4,): 0.02}, seed=pairing.SEED, most=2, sd=0.01)
    pairs = [Paired(a=f"n{s.a}", b=f"n{s.b}", round=s.round, time_s=s.time_s) for s in seen]
    suspects = pairing.suspects_of(pairs, [f"n{i}" for i in range(16)], "ddp/decoder-nano", 2)
    assert suspects.nodes == () and "n4" in suspects.undecided
    assert "n4" in pairing.open_still(suspects) and "--rounds 4" in pairing.open_still(suspects)
    assert any(" OPEN " in line for line in of_pairs(suspects, 100))
    assert not any("no node and no link" in line for line in of_pairs(suspects, 100))
    assert list(pairing.replayed(suspects, 2)) == []
    assert list(pairing.replayed(replace(suspects, undecided=()), 2))


def test_a_report_shows_the_pairs_of_a_run_and_its_slow_node(
    sample_run: RunRecord, tmp_path: Path
) -> None:
    pairs = [
        Paired(a=f"n{s.a}", b=f"n{s.b}", round=s.round, time_s=s.time_s)
        for s in play(8, {(4,): 0.5}, seed=pairing.SEED, sd=0.01)
    ]
    suspects = pairing.suspects_of(pairs, [f"n{i}" for i in range(8)], "ddp/decoder-nano", 32)
    assert suspects.nodes == ("n4",)
    run = replace(
        sample_run,
        plans=(),
        described={},
        launches=(),
        thresholds=(),
        verdicts=(),
        suspects=suspects,
    )
    shown = "\n".join(screen.lines(run, tmp_path, "", 80))
    assert "RECORDED: the speed of pairs of nodes was measured" in shown
    assert "NODE  n4" in shown and "0 launches" not in shown
    failed = replace(suspects, pairs=tuple(replace(p, time_s=None) for p in pairs), slow=())
    nothing = replace(run, suspects=failed)
    unmeasured = "\n".join(screen.lines(nothing, tmp_path, "", 80))
    assert "RECORDED" not in unmeasured and "no pair of nodes completed" in unmeasured
    assert "no pair of nodes completed" in html(nothing) and "slower" not in html(nothing)
    assert "NODE  n4" in html(run) and html(run).count("<tr>") == len(pairs) + 1
