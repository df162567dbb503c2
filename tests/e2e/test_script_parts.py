"""Parts of trainings that not every rank does alike: frozen models, sharded optimizers, workers."""

from __future__ import annotations

import pytest

from harness.cases import Mode, Protocol
from harness.record import Status
from tests.e2e.test_script import Measured, measured, session

__all__ = ["measured", "session"]  # fixtures

TWELVE = Protocol(steps=14, cut=4, min_blocks=1, max_blocks=1, fixed=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("part", ["teacher", "sharded optimizer"])
def test_a_share_of_the_work_is_right_where_a_batch_is_shared(
    measured: Measured, part: str
) -> None:
    """Each rank asks the teacher about its samples, and steps its share of the parameters."""
    verdict = measured("parts.py", part, "--divide", mode=Mode.STRONG)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "gradient of 2cpu equal to one rank's" in measured.table()


def test_flat_shards_are_no_replicas(measured: Measured) -> None:
    """FSDP's first kind says of no parameter that it is a part."""
    verdict = measured("parts.py", "flat shards")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "replicas (parameters are sharded)" in measured.table()
    assert "exchanged as often as needed" in measured.table()


@pytest.mark.full
def test_layers_that_are_cut_by_hand_are_no_replicas(measured: Measured) -> None:
    """All ranks see the same samples, and sum what each has computed of them."""
    verdict = measured("parts.py", "cut layers", mode=Mode.STRONG)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "replicas (parameters are sharded)" in measured.table()
    assert "(ranks hold parts of the model)" in measured.table()


def test_ranks_that_gather_features_are_replicas_all_the_same(measured: Measured) -> None:
    """They train on samples of their own, and nobody exchanges gradients."""
    verdict = measured("parts.py", "gathers")
    assert verdict.status is Status.ERROR, verdict.detail
    assert "replicas: ranks ended with different parameters" in verdict.detail


@pytest.mark.full
def test_a_batch_that_passes_twice_is_one_batch(measured: Measured) -> None:
    verdict = measured("parts.py", "twice")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    for ranks in (1, 2):
        launch = measured.launches(ranks)[0]
        assert launch.steps is not None and launch.consumed == 64 * ranks * launch.steps.count


@pytest.mark.full
def test_exchanges_of_a_part_are_counted_by_that_part(measured: Measured) -> None:
    """The gradients of a head, in each of four passes: less than the whole model once."""
    verdict = measured("parts.py", "head")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "in each of 4 backward passes: is no_sync() missing" in measured.table()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("lazy", "is the update skipped on several ranks?"),
        pytest.param("lazy everywhere", "", marks=pytest.mark.full),
    ],
)
def test_an_update_that_changes_nothing_is_none(measured: Measured, part: str, says: str) -> None:
    verdict = measured("parts.py", part, protocol=TWELVE)
    if says:
        assert verdict.status is Status.ERROR and says in verdict.detail, verdict.detail
    else:
        assert verdict.value is not None and measured.wrong() == [], verdict.detail


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("part", "says", "silent"),
    [
        ("workers", "the loader has 2 workers a rank, and 0 on one rank", "get_worker_info"),
        ("unsplit", "do all workers of the loader read the same ones", "workers a rank"),
        ("unsplit, accumulated", "do all workers of the loader read the same", "workers a rank"),
        ("histograms", "times the CPU time on one rank", "workers"),
        ("split", "", "workers"),
        ("augments", "", "(.item())"),
    ],
)
def test_what_differs_beside_the_ranks_is_noticed(
    measured: Measured, part: str, says: str, silent: str
) -> None:
    verdict = measured("parts.py", part, protocol=TWELVE)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert says in measured.table() and silent not in measured.table()
