"""The budget, compared with a counter that classifies every nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.analysis.timeline.close import close
from harness.analysis.timeline.intervals import EMPTY, Intervals, union
from harness.analysis.timeline.lanes import Lanes, Op
from harness.analysis.timeline.losses import losses
from harness.interface.report.windows import window_lines
from harness.record import Budget, Term

SPAN = 60


def made(pairs: list[tuple[int, int]]) -> Intervals:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


instants = st.lists(st.integers(0, SPAN), min_size=2, max_size=2, unique=True)
pairs = st.lists(instants.map(sorted).map(tuple), max_size=4)


@st.composite
def worlds(draw: st.DrawFn) -> list[Lanes]:
    """Draw one to three ranks with the same collectives, and with sends and receives between ranks
    0 and 1, at any times.
    """
    num = draw(st.integers(1, 3))
    collectives = draw(st.integers(0, 3))
    sends = draw(st.integers(0, 2)) if num > 1 else 0
    out = []
    for rank in range(num):
        ops = []
        for i in range(collectives):
            start = draw(st.integers(0, SPAN - 1))
            end = draw(st.integers(start + 1, SPAN))
            ops.append(Op(start=start, end=end, kind="all_reduce", group="", seq=i))
        for _ in range(sends if rank < 2 else 0):
            start = draw(st.integers(0, SPAN - 1))
            end = draw(st.integers(start + 1, SPAN))
            kind = "send" if rank == 0 else "recv"
            ops.append(Op(start=start, end=end, kind=kind, group="", peer=1 - rank))
        cuts = sorted(draw(st.sets(st.integers(1, SPAN - 1), max_size=2)))
        out.append(
            Lanes(
                rank=rank,
                world_size=num,
                device="cpu",
                edges=np.array([0, *cuts, SPAN], dtype=np.int64),
                compute=made(draw(pairs)),
                move=made(draw(pairs)),
                ops=tuple(sorted(ops, key=lambda o: (o.start, o.end))),
                data=made(draw(pairs)),
                launch=made(draw(pairs)),
                queued=made(draw(pairs)),
            )
        )
    return out


def inside(a: Intervals, t: int) -> bool:
    return any(low <= t < high for low, high in a.tolist())


def oracle(ranks: list[Lanes], lane: Lanes, t: int) -> Term:
    """Return the term of one nanosecond, directly from the definitions."""
    if inside(lane.compute, t):
        return Term.COMPUTE
    if inside(lane.move, t):
        return Term.MOVE
    under_way = [o for o in lane.ops if o.start <= t < o.end]
    if under_way:
        for o in under_way:
            if not o.p2p and any(
                p.start > t for r in ranks for p in r.ops if p.seq == o.seq and not p.p2p
            ):
                return Term.WAIT
        for o in under_way:
            if o.p2p:
                other = next(r for r in ranks if r.rank == o.peer)
                k = next(i for i, p in enumerate(p for p in lane.ops if p.p2p) if p is o)
                if [p for p in other.ops if p.p2p][k].start > t:
                    return Term.BUBBLE
        return Term.TRANSFER
    for term, own_ns in (
        (Term.DATA, lane.data),
        (Term.LAUNCH, lane.launch),
        (Term.OTHER, lane.queued),
    ):
        if inside(own_ns, t):
            return term
    return Term.IDLE


@given(worlds())
def test_every_nanosecond_is_counted_in_its_term(ranks: list[Lanes]) -> None:
    steps = min(len(r.edges) for r in ranks) - 1
    budget = close(ranks, {}, 0).budget
    for lane, lane_budget in zip(ranks, budget.ranks, strict=True):
        for k in range(steps):
            low, high = int(lane.edges[k]), int(lane.edges[k + 1])
            want = [oracle(ranks, lane, t) for t in range(low, high)]
            got = {t: v[k] for t, v in lane_budget.terms.items() if v[k]}
            assert got == {str(t): want.count(t) for t in Term if t in want}
            assert lane_budget.step_ns[k] == high - low == sum(got.values())


@given(worlds(), worlds(), st.integers(1, 8), st.fractions(min_value="1/8", max_value=2))
def test_lost_speedup_is_the_sum_of_its_terms(
    base: list[Lanes], rung: list[Lanes], ranks: int, work: Fraction
) -> None:
    lost = losses(close(base, {}, 0).budget, close(rung, {}, 0).budget, ranks=ranks, work=work)
    assert sum(lost.lost.values()) == ranks - lost.speedup
    assert sum(lost.excess_ns.values()) == lost.step_ns - lost.ideal_ns


def chain(rank: int, busy_ns: int) -> Lanes:
    """Return a forward pass of a pipeline stage, which receives from the previous stage and sends
    to the next.
    """
    start = 100 * rank + 300 * (rank > 0)  # Stage 0 takes 400 ns, every other stage 100 ns.
    ops = []
    if rank:
        ops.append(Op(start=0, end=start, kind="recv", group="", peer=rank - 1))
    if rank < 2:
        done = start + busy_ns
        ops.append(Op(start=done, end=done + 1, kind="send", group="", peer=rank + 1))
    return replace(
        rank_of(rank, 0), world_size=3, ops=tuple(ops), compute=made([(start, start + busy_ns)])
    )


def test_a_stage_that_is_late_because_it_waited_is_not_blamed() -> None:
    """Stage 2 waits for stage 1, which waits for stage 0, so stage 0 is blamed."""
    blame = close([chain(0, 400), chain(1, 100), chain(2, 100)], {}, 0).budget.blame
    assert blame is not None and (blame.rank, blame.term) == (0, Term.COMPUTE)
    assert blame.excess_ns == 300


def test_an_asynchronous_send_counts_only_once_it_is_waited_for() -> None:
    """The host is idle from 200 to 400 during a send that it waits for only at 600."""
    ops = (Op(start=100, end=700, kind="send", group="", peer=1, waited=600),)
    lane = replace(rank_of(0, 0), world_size=1, ops=ops, compute=made([(0, 200), (400, 600)]))
    (rank,) = close([lane], {}, 0).budget.ranks
    assert rank.terms[Term.IDLE] == (600,) and rank.comm_ns == (600,)


# --- waits and clocks ---------------------------------------------------------------------------


def rank_of(rank: int, late_ns: int, *, clock_ns: int = 0, busy_ns: int = 100) -> Lanes:
    """Return a rank that computes and then joins an all-reduce that ends for all at 1000;
    ``late_ns`` is extra compute.
    """
    end, start = 1_000 + clock_ns, 500 + late_ns + clock_ns
    return Lanes(
        rank=rank,
        world_size=2,
        device="cpu",
        edges=np.array([clock_ns, 1_100 + clock_ns], dtype=np.int64),
        compute=made([(clock_ns, busy_ns + late_ns + clock_ns)]),
        move=EMPTY,
        ops=(Op(start=start, end=end, kind="all_reduce", group="", payload=64),),
        data=EMPTY,
        launch=EMPTY,
        queued=EMPTY,
    )


def test_the_late_rank_is_named_with_the_term_that_delayed_it() -> None:
    blame = close([rank_of(0, 0), rank_of(1, 300)], {}, 0).budget.blame
    assert blame is not None and (blame.rank, blame.waited_ns, blame.share) == (1, 300, 1.0)
    assert (blame.gross_ns, blame.net_ns, blame.in_turn) == (300, 300, False)
    assert (blame.term, blame.excess_ns) == (Term.COMPUTE, 300)


def over_steps(rank: int, late_ns: Sequence[int]) -> Lanes:
    """Return a rank whose steps each compute for this extra time and then join an all-reduce that
    ends for all at 1000.
    """
    starts = [1_100 * step for step in range(len(late_ns))]
    pairs = list(zip(starts, late_ns, strict=True))
    return replace(
        rank_of(rank, 0),
        edges=np.array([*starts, 1_100 * len(late_ns)], dtype=np.int64),
        compute=made([(start, start + 100 + late) for start, late in pairs]),
        ops=tuple(
            Op(start=start + 500 + late, end=start + 1_000, kind="all_reduce", group="", payload=64)
            for start, late in pairs
        ),
    )


def test_two_ranks_that_wait_in_turn_are_not_reported_as_one_late_rank() -> None:
    """With unequal sequence lengths, the waits of both ranks cancel over all steps."""
    turns = [over_steps(0, [300, 0, 300, 0, 400]), over_steps(1, [0, 300, 0, 300, 0])]
    budget = close(turns, {}, 0).budget
    blame = budget.blame
    assert blame is not None and blame.in_turn
    assert (blame.rank, blame.gross_ns, blame.net_ns) == (0, 1_600 // 5, 400 // 5)
    assert blame.share == 1_000 / 1_600 and blame.waited_ns == 1_000 // 5
    lines = " ".join(window_lines("t", budget, 100))
    assert "in turn" in lines and "100%" not in lines


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=6))
def test_waiting_of_two_ranks_adds_up(late: list[tuple[int, int]]) -> None:
    """One rank causes all waiting only if the other rank was never later."""
    blame = close(
        [over_steps(rank, [x[rank] for x in late]) for rank in (0, 1)], {}, 0
    ).budget.blame
    longer = [sum(max(0, x[rank] - x[1 - rank]) for x in late) for rank in (0, 1)]
    if blame is None:
        assert longer == [0, 0]
        return
    assert blame.share == max(longer) / sum(longer)
    assert blame.gross_ns == sum(longer) // len(late)
    assert (blame.share == 1.0) == (0 in longer)
    assert blame.in_turn == (2 * (abs(longer[0] - longer[1]) // len(late)) < blame.gross_ns)


def test_two_estimates_of_waiting_agree_on_one_clock_and_differ_on_two() -> None:
    good = close([rank_of(0, 0), rank_of(1, 300)], {}, 10).budget
    assert good.ranks[0].terms[Term.WAIT] == good.ranks[0].wait_free_ns == (300,)
    assert good.unsure == ()
    off = close([rank_of(0, 0), rank_of(1, 300, clock_ns=150)], {}, 10).budget
    assert "by durations alone" in off.unsure[0]
    assert close([rank_of(0, 0), rank_of(1, 300, clock_ns=150)], {1: -150}, 10).budget == good


def test_impossible_clocks_are_corrected_by_the_collectives() -> None:
    budget = close([rank_of(0, 0), rank_of(1, 300, clock_ns=10_000_000)]).budget
    assert "its clock is off by" in budget.unsure[0] and budget.clock_ns is not None
    assert budget.ranks[0].terms[Term.WAIT][0] > 0


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (rank_of(1, 0).ops * 2, "counts differ"),
        ((Op(start=1, end=2, kind="all_reduce", group="", payload=65),), "disagree on its size"),
        ((Op(start=1, end=2, kind="all_gather", group="", payload=64),), "only ranks [0]"),
        ((Op(start=1, end=2, kind="send", group="", peer=0),), "only ranks [0]"),
    ],
)
def test_communication_that_does_not_match_is_not_divided(second: tuple[Op, ...], why: str) -> None:
    budget = close([rank_of(0, 0), replace(rank_of(1, 0), ops=second)], {}, 0).budget
    assert why in budget.unsure[0]
    assert Term.WAIT not in budget.ranks[0].terms and budget.total_ns(Term.UNDIVIDED) > 0
    assert budget.blame is None


def test_communication_of_a_single_trace_is_not_divided() -> None:
    budget = close([rank_of(0, 0)]).budget
    assert "only 1 of 2 traces were given" in budget.unsure[0]


def test_load_balance_times_communication_efficiency_is_the_compute_share() -> None:
    budget: Budget = close([rank_of(0, 0), rank_of(1, 300)], {}, 0).budget
    parallel = budget.load_balance * budget.communication_efficiency
    assert parallel == pytest.approx(budget.mean_ns(Term.COMPUTE) / budget.step_ns)
