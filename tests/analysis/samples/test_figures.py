"""Figures of a launch count the samples that were consumed, and deviations from the request are
listed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from harness.analysis.samples import figures
from harness.record import RunRecord
from harness.record.store import Samples


def make(ids: list[list[int]], loss: float = 1.0) -> Samples:
    n = len(ids)
    return Samples(
        marks_s=np.arange(n + 1.0), loss=np.full(n, loss), sample_ids=np.array(ids),
        rss_bytes=np.zeros(n), step_s=np.ones(n),
    )  # fmt: skip


def test_consumed_samples_are_counted_not_requested_ones() -> None:
    disjoint = [make([[0, 1], [4, 5]]), make([[2, 3], [6, 7]])]
    same = [make([[0, 1], [4, 5]]), make([[0, 1], [4, 5]])]
    assert figures.consumed(disjoint, 0) == 8
    assert figures.consumed(same, 0) == 4
    assert figures.consumed(disjoint, 1) == 4


def test_deviations_from_the_requested_run_are_listed(sample_run: RunRecord) -> None:
    plan = sample_run.plans[0]
    case = plan.arm("@2").case
    expected = sample_run.described[case.hash].expected
    assert expected is not None
    launch = next(x for x in sample_run.launches if x.arm == "@2" and x.steps)
    good = [make([[i * 16 + r * 8 + j for j in range(8)] for i in range(4)]) for r in range(2)]

    def wrong(ranks: Any, samples: Any = good) -> str:
        return " | ".join(figures.wrong(case, expected, ranks, samples, 1))

    ranks = [
        dataclasses.replace(
            r, sent_bytes=int(expected.sent_bytes[0] * 3), written_bytes=None, kernel_s=None
        )
        for r in launch.ranks
    ]
    assert wrong(ranks) == ""
    assert "ranks [0] joined" in wrong(ranks[:1])
    assert "backend mpi" in wrong([dataclasses.replace(r, backend="mpi") for r in ranks])
    assert "ran on NVIDIA" in wrong([dataclasses.replace(r, device="NVIDIA H200") for r in ranks])
    assert "two ranks in one process" in wrong([dataclasses.replace(r, pid=1) for r in ranks])
    assert "two ranks on one device" in wrong([dataclasses.replace(r, local_rank=0) for r in ranks])
    assert "2 ranks on one device, GPU-7" in wrong(
        [dataclasses.replace(r, device_uuid="GPU-7") for r in ranks]
    )
    assert wrong([dataclasses.replace(r, device_uuid=f"GPU-{r.rank}") for r in ranks]) == ""
    assert "ranks per node {0: 1, 1: 1}" in wrong(
        [dataclasses.replace(r, node=r.rank) for r in ranks]
    )
    module = dataclasses.replace(ranks[0].ran, module="Sequential")
    assert "trained a Sequential" in wrong([dataclasses.replace(r, ran=module) for r in ranks])
    doubled = [dataclasses.replace(r, sent_bytes=2 * (r.sent_bytes or 0)) for r in ranks]
    assert "sent 2.000x of 2 (N-1)/N bytes(P)" in wrong(doubled)
    assert "24 consumed, expected 48" in wrong(ranks, [good[0], good[0]])
    wide = [dataclasses.replace(r, affinity=(r.rank,), cpu_s=1.5 * r.window_s) for r in ranks]
    assert "cores: rank 0 computed for" in wrong(wide) and "given 1 core" in wrong(wide)
    assert wrong([dataclasses.replace(r, affinity=(0, 1)) for r in wide]) == ""
    late = [dataclasses.replace(r, clock_misses=3, planted_s=1.0, window_s=3.1) for r in ranks]
    assert "slot too short: 3 deadlines of the schedule missed, 3.3% late" in wrong(late)
    caught_up = [dataclasses.replace(r, window_s=3.001) for r in late]
    assert wrong(caught_up) == ""
    assert "loss: not finite" in wrong(ranks, [make(good[0].sample_ids.tolist(), np.inf), good[1]])


def test_equal_samples_count_as_often_as_they_were_drawn() -> None:
    """Two samples of a small vocabulary may have equal tokens; half of a batch must still count as
    half.
    """
    whole = dataclasses.replace(
        make([[0, 1, 2, 3]]), content=np.array([[7, 7, 8, 9]]), seen=np.array([[7, 8, 9]])
    )
    assert figures.consumed([whole], 0) == 4
    assert figures.consumed([dataclasses.replace(whole, seen=np.array([[7, 0, 0]]))], 0) == 2
