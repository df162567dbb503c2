"""Costs of collectives, compared with sums of messages; NCCL's model, compared with bounds that it
must obey.
"""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given, strategies as st

from harness.features.foresight.physics import collectives as c
from harness.features.foresight.physics.collectives import CollectiveKind, Fabric, LinkRate, nccl

LINK = LinkRate(latency_s=5e-6, bytes_per_s=50e9)
H100 = Fabric(per_node=8, intra_bytes_per_s=370e9, inter_bytes_per_s=50e9)


@pytest.mark.parametrize("ranks", [2, 8, 64, 1000])
def test_a_ring_costs_the_sum_of_its_messages(ranks: int) -> None:
    n = 256 * 2**20
    message = c.point_to_point(LINK, n / ranks)
    assert c.ring_all_gather(LINK, n, ranks) == pytest.approx((ranks - 1) * message, rel=1e-9)
    assert c.ring_all_reduce(LINK, n, ranks) == pytest.approx(2 * (ranks - 1) * message, rel=1e-9)
    assert c.pairwise_all_to_all(LINK, n, ranks) == c.ring_all_gather(LINK, n, ranks)


def test_logarithmic_algorithms_cost_the_sum_of_their_rounds() -> None:
    """Rabenseifner's algorithm halves the message in each of log2 p rounds, then doubles it again."""
    n, ranks = 2.0**20, 16
    halving = sum(c.point_to_point(LINK, n / 2**i) for i in range(1, 5))
    assert c.rabenseifner(LINK, n, ranks) == pytest.approx(2 * halving, rel=1e-9)
    assert c.bruck_all_gather(LINK, n, ranks) == pytest.approx(halving, rel=1e-9)
    doubling = c.recursive_doubling(LINK, n, ranks)
    assert doubling == pytest.approx(log2(ranks) * c.point_to_point(LINK, n), rel=1e-9)
    assert c.tree_all_reduce(LINK, 0, ranks) == pytest.approx(8 * LINK.latency_s, rel=1e-9)


def test_a_hierarchical_all_reduce_sends_a_share_of_the_bytes_between_nodes() -> None:
    n, free = 1e9, LinkRate(latency_s=0, bytes_per_s=1e30)
    cost_s = c.hierarchical_all_reduce(free, LINK, n, per_node=8, nodes=4)
    assert cost_s == pytest.approx(c.ring_all_reduce(LINK, n / 8, 4), rel=1e-9)


def test_nccl_reaches_the_link_rate_with_large_messages() -> None:
    n = 2.0**33
    for ranks in (2, 8):
        sent = 2 * (ranks - 1) / ranks * n
        took = nccl(CollectiveKind.ALL_REDUCE, n, ranks, 8, H100).total_s
        assert sent / took == pytest.approx(H100.intra_bytes_per_s, rel=0.01)


def test_the_rings_of_a_node_share_its_network_cards() -> None:
    """Eight ranks of a node use eight network cards; with one rank per node, it uses one card."""
    n = 2.0**33
    whole = nccl(CollectiveKind.ALL_GATHER, n, 64, 8, H100).transfer_s
    alone = nccl(CollectiveKind.ALL_GATHER, n, 64, 1, H100).transfer_s
    assert alone / whole == pytest.approx(370 / 50, rel=0.01)


def test_trees_make_all_reduce_logarithmic_while_all_gather_stays_linear() -> None:
    small = 1024.0
    times = {
        kind: [nccl(kind, small, n, 8, H100).total_s for n in (512, 8192)]
        for kind in CollectiveKind
    }
    assert times[CollectiveKind.ALL_REDUCE][1] < 2 * times[CollectiveKind.ALL_REDUCE][0]
    assert times[CollectiveKind.ALL_GATHER][1] > 10 * times[CollectiveKind.ALL_GATHER][0]


@given(
    kind=st.sampled_from(list(CollectiveKind)), ranks=st.sampled_from([2, 8, 16, 64, 1024]),
    num_bytes=st.floats(1, 1e11), faster=st.floats(1, 100), more=st.floats(1, 100),
)  # fmt: skip
def test_faster_links_never_cost_more_and_more_bytes_never_less(
    kind: CollectiveKind, ranks: int, num_bytes: float, faster: float, more: float
) -> None:
    quick = Fabric(per_node=8, intra_bytes_per_s=370e9 * faster, inter_bytes_per_s=50e9 * faster)
    took = nccl(kind, num_bytes, ranks, 8, H100).total_s
    assert nccl(kind, num_bytes, ranks, 8, quick).total_s <= took
    assert nccl(kind, num_bytes * more, ranks, 8, H100).total_s >= took


def test_one_rank_and_no_bytes_are_free() -> None:
    assert nccl(CollectiveKind.ALL_REDUCE, 1e9, 1, 8, H100).total_s == 0
    assert nccl(CollectiveKind.ALL_REDUCE, 0, 8, 8, H100).total_s == 0
