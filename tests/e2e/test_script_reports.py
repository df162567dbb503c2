"""Defects that users reported are named on the screen, and the right twins raise nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cases import Protocol
from harness.interface.report.script.row import ScriptRow
from harness.interface.report.script.steps import rates
from harness.record import Status
from tests.e2e.scripts import Measured

LONG = Protocol(steps=28, cut=2, min_blocks=1, max_blocks=1)
#: Case -> the words that name its cause.
NAMED = {
    "workers": "starts its workers anew in each epoch. persistent_workers=True keeps them",
    "barriers": "4 barriers in a step take",
    "lengths": "ranks wait for each other in turn",
    "loss": "is the loss multiplied by the number of ranks",
    "statistics": "buffers of BatchNorm1d 0 differ between ranks, and nothing copies them",
    "saves": "is lost in torch.save",
    "garbage": "is lost in the interpreter's garbage collection",
    "objects": "call of all_gather_object",
    "iterators": "new iterators of loaders are made in",
    "collecting": "is gc.collect() called in the loop?",
    "one by one": "join several values in one tensor",
    "after backward": "exchanges gradients after the backward pass",
    "anomaly": "torch.autograd.set_detect_anomaly(True)",
    "buffers": "4 MB of buffers are broadcast in each step",
    "schedule": "does the scheduler step once for each rank?",
    "skipping": "does each rank read or prepare the samples of all ranks?",
    "average": "an average of weights (EMA)",
    "targets": "losses are means over",
    "clipped": "ranks clip their gradients by different norms",
    "epochs": "the loader's workers have copies that set_epoch does not reach",
    "graphs": "earlier steps still exist, so memory grows with each step",
    "scaled": "call scaler.unscale_(optimizer) before clip_grad_norm_",
    "reduced": "torch.distributed.nn.functional has collectives with gradients",
    "pinned": "all ranks of one machine may only use the same cores (0)",
    "passes": "a pass over the loader has 12 batches on rank 0 and 10 on rank 1",
}
#: Words of every remark that a right training must not raise. Slow steps are no such remark: they
#: are true if other tests use the cores.
SILENT = ("barrier", "in turn", "multiplied", "divided by", "buffers of", "after the backward pass", "calls of", "call of", "iterators", "gc.collect", "join several",
          "switched on", "graphs of", "unscale_", "with gradients", "same cores", "means over", "clip their", "set_epoch", "broadcast in", "scheduler", "of all ranks", "EMA")  # fmt: skip


#: Cases whose launches take a minute.
LENGTHY = {"skipping", "iterators", "objects", "statistics", "garbage", "collecting", "saves"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.full] * (x in LENGTHY)) for x in NAMED]
)
def test_the_cause_of_a_reported_defect_is_named(measured: Measured, case: str) -> None:
    verdict = measured("reported.py", case, protocol=LONG)
    assert verdict.value is not None, verdict.detail
    assert NAMED[case] in measured.table()


@pytest.mark.full
def test_learning_rates_are_compared_at_the_same_update(measured: Measured) -> None:
    """The launch of one rank ended after 8 updates, that of two ranks after more."""
    measured("reported.py", "schedule", protocol=LONG)
    single, several = measured.launches(1)[0], measured.launches(2)
    (rank,) = single.ranks
    assert rank.watched is not None
    ended = replace(rank.watched, num_updates=8, rates_at=rank.watched.rates_at[:4])
    short = replace(single, ranks=(replace(rank, watched=ended),))
    remark = rates(ScriptRow(measured.plan.arm("@2"), several), [short])
    assert remark.startswith("at update 8 ") and NAMED["schedule"] in remark


@pytest.mark.few(1)
@pytest.mark.parametrize("case", [*NAMED, "divided"])
def test_a_right_training_raises_no_remark(measured: Measured, case: str) -> None:
    verdict = measured("reported.py", case, "right", protocol=LONG)
    assert verdict.value is not None, verdict.detail
    _, _, remarks = measured.table().partition("not checked")
    assert not [words for words in SILENT if words in remarks], remarks


def test_a_loader_that_ends_early_is_named(measured: Measured) -> None:
    verdict = measured("reported.py", "shards", protocol=LONG)
    assert verdict.status is Status.ERROR
    assert "its loader ended after 10 batches, and rank 0 goes on with batch 11" in verdict.detail


@pytest.mark.few(2)
@pytest.mark.parametrize("defect", ["stale", "nan", "right"])
@pytest.mark.parametrize("scheme", ["plain", "fused", "zero", "fsdp1", "fsdp2", "master"])
def test_absolute_facts_hold_for_every_optimizer_scheme(
    measured: Measured, scheme: str, defect: str
) -> None:
    """Weights change and losses are finite, whatever the optimizer steps."""
    verdict = measured("schemes.py", scheme, defect, protocol=LONG)
    if defect == "right":
        assert verdict.value is not None, verdict.detail
        _, _, remarks = measured.table().partition("not checked")
        assert not [words for words in SILENT if words in remarks], remarks
    else:
        cause = {"stale": "change no weight", "nan": "loss: not finite"}[defect]
        assert verdict.status is Status.ERROR and cause in verdict.detail, verdict.detail


def test_ranks_that_stop_alone_are_named(measured: Measured) -> None:
    verdict = measured("reported.py", "stops", protocol=LONG)
    assert verdict.status is Status.ERROR
    assert "does each rank decide alone when to stop" in verdict.detail, verdict.detail


@pytest.mark.full
@pytest.mark.parametrize("right", [False, True])
def test_a_model_that_is_used_before_fsdp_trains_it(measured: Measured, right: bool) -> None:
    """A pass without gradients leaves FSDP2's whole weights, which an optimizer must not get."""
    verdict = measured("sharded_first.py", *(["right"] if right else []), protocol=LONG)
    if right:
        assert verdict.value is not None, verdict.detail
    else:
        assert "the optimizer's steps change no weight" in verdict.detail, verdict.detail


@pytest.mark.full
def test_a_hang_of_idle_ranks_is_named_within_a_minute(measured: Measured) -> None:
    """Rank 0 alone evaluates through DDP, which broadcasts buffers that rank 1 never receives."""
    verdict = measured("evaluates_alone.py", protocol=LONG)
    assert verdict.status is Status.ERROR and "broadcast" in verdict.detail, verdict.detail


@pytest.mark.full
def test_loaders_of_one_length_are_right(measured: Measured) -> None:
    verdict = measured("reported.py", "shards", "right", protocol=LONG)
    assert verdict.value is not None, verdict.detail


def test_checks_alone_are_made_in_one_launch_of_each_world(measured: Measured) -> None:
    verdict = measured("loop.py", protocol=Protocol(steps=8, cut=2, min_blocks=0, max_blocks=0))
    assert verdict.status is Status.RECORDED and verdict.value is None
    mine = [x for x in measured.session.run.launches if x.plan == measured.plan.hash]
    assert [len(launch.ranks) for launch in mine] == [1, 2]
    wrong = measured(
        "loop.py", "--mistake", "half",
        protocol=Protocol(steps=8, cut=2, min_blocks=0, max_blocks=0),
    )  # fmt: skip
    assert wrong.status is Status.ERROR and "work: a sample takes 0.5" in wrong.detail
