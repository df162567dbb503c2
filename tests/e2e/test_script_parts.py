"""Training scripts whose ranks differ: frozen models, sharded optimizers, workers."""

from __future__ import annotations

import pytest

from harness.cases import Mode, Protocol
from harness.record import Status
from tests.e2e.scripts import Measured

TWELVE = Protocol(steps=14, cut=4, min_blocks=1, max_blocks=1, fixed=True)


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "part", [pytest.param("teacher", marks=pytest.mark.full), "sharded optimizer"]
)
def test_a_share_of_the_work_is_correct_if_ranks_share_a_batch(
    measured: Measured, part: str
) -> None:
    """Each rank runs the teacher on its samples, and updates its share of the parameters."""
    verdict = measured("parts.py", part, "--divide", mode=Mode.STRONG)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "gradient of 2cpu equal to one rank's" in measured.table()


@pytest.mark.full
def test_flat_shards_are_no_replicas(measured: Measured) -> None:
    """The parameters of FSDP1 do not state that they are shards."""
    verdict = measured("parts.py", "flat shards")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "replicas (parameters are sharded)" in measured.table()
    assert "exchanged as often as needed" in measured.table()


@pytest.mark.full
def test_manually_split_layers_are_no_replicas(measured: Measured) -> None:
    """All ranks train on the same samples and sum their partial results."""
    verdict = measured("parts.py", "cut layers", mode=Mode.STRONG)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "replicas (parameters are sharded)" in measured.table()
    assert "(ranks hold parts of the model)" in measured.table()


@pytest.mark.full
def test_ranks_that_gather_features_are_still_replicas(measured: Measured) -> None:
    """The ranks train on different samples without exchanging gradients."""
    verdict = measured("parts.py", "gathers")
    assert verdict.status is Status.ERROR, verdict.detail
    assert "replicas: ranks ended with different parameters" in verdict.detail


@pytest.mark.full
def test_a_batch_that_is_used_twice_counts_once(measured: Measured) -> None:
    verdict = measured("parts.py", "twice")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    for ranks in (1, 2):
        launch = measured.launches(ranks)[0]
        assert launch.steps is not None and launch.consumed == 64 * ranks * launch.steps.count


@pytest.mark.full
def test_exchanges_of_a_part_are_compared_with_that_part(measured: Measured) -> None:
    """The gradients of a head in four passes are less than those of the model in one pass."""
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
def test_an_update_that_changes_nothing_does_not_count(
    measured: Measured, part: str, says: str
) -> None:
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
        ("unsplit", "do all workers of the loader read the same samples", "workers a rank"),
        ("unsplit, accumulated", "do all workers of the loader read the same", "workers a rank"),
        ("histograms", "times the CPU time on one rank", "workers"),
        ("split", "", "workers"),
        ("augments", "", "(.item())"),
    ],
)
def test_differences_between_one_and_several_ranks_are_noticed(
    measured: Measured, part: str, says: str, silent: str
) -> None:
    verdict = measured("parts.py", part, protocol=TWELVE)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert says in measured.table() and silent not in measured.table()
