"""All inputs give the same batches, and an input that gives different ones is detected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Site
from harness.record import Purpose
from harness.training.context import RankContext, load
from harness.training.describe import case_batching, describe
from harness.training.feeds import STEPS_PER_EPOCH, Source, helpers_of, took, whole_epochs
from harness.training.inputs import prefetched
from harness.training.observe import kernel_counters

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(1,))


def made(folder: Path, data: str, steps: int, *, plain: bool = False, **knobs: Any) -> Any:
    knobs = {f"{data}.{k}": v for k, v in knobs.items()}
    case = KNOWN.normalise(SITE.case("ddp/mlp-nano", data=data, knobs=knobs).at(1))
    loaded = load(KNOWN.files(case))
    batching = case_batching(loaded, case)
    ctx = RankContext(
        case=case, rank=0, world_size=1, device=torch.device("cpu"), batching=batching,
        loss=loaded.model.loss, compressor=None, mesh=batching.mesh, shard=0,
        sample=lambda count: torch.empty(count),
    )  # fmt: skip
    source = Source(
        loaded=loaded, ctx=ctx, sampler=whole_epochs(ctx), steps=steps, folder=folder / data
    )
    return loaded.feed(source, plain=plain)


def batches(folder: Path, data: str, steps: int, **more: Any) -> list[Any]:
    feed = made(folder, data, steps, **more)
    return [feed(step) for step in range(steps)]


def same(first: list[Any], two: list[Any]) -> bool:
    return all(
        torch.equal(a.ids, b.ids) and torch.equal(a.inputs, b.inputs)
        and torch.equal(a.targets, b.targets)
        for a, b in zip(first, two, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("steps", [1, prefetched.AHEAD, 2 * prefetched.AHEAD + 3])
def test_all_inputs_give_the_same_batches(tmp_path: Path, steps: int) -> None:
    resident = batches(tmp_path, "resident", steps)
    for data in ("loaded", "prefetched", "files"):
        assert same(resident, batches(tmp_path, data, steps)), data


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("persistent", [True, False])
def test_epochs_follow_each_other(tmp_path: Path, workers: int, persistent: bool) -> None:
    steps = STEPS_PER_EPOCH + 3
    read = batches(tmp_path, "files", steps, workers=workers, persistent=persistent, shard_mb=0.01)
    assert same(read, batches(tmp_path, "loaded", steps))


def test_a_small_dataset_is_gone_through_again(tmp_path: Path) -> None:
    few = dict(dataset_mb=0.002)
    assert same(
        batches(tmp_path, "files", 12, **few), batches(tmp_path, "files", 12, plain=True, **few)
    )
    assert not same(batches(tmp_path, "files", 12, **few), batches(tmp_path, "loaded", 12))


def test_times_and_memory_of_workers_are_known(tmp_path: Path) -> None:
    before = kernel_counters.shared_memory()
    feed = made(tmp_path, "files", 4, workers=2, decode_ms=1.0)
    for step in range(4):
        feed(step)
    assert len(helpers_of(feed)) == 2 and os.getpid() not in helpers_of(feed)
    times = took(feed)
    assert times is not None and times["decode_s"] >= 1e-3 * len(feed(0).ids)
    assert not kernel_counters.shared_memory(helpers_of(feed)) - before
    assert same([feed(1)], [made(tmp_path, "loaded", 4)(1)])  # the rank itself reads it again


def test_only_child_processes_are_helpers(tmp_path: Path) -> None:
    """Only child processes count as helpers, so an input cannot hide memory of other ranks."""
    feed = made(tmp_path, "files", 2, workers=1)
    feed(0)

    class Claims:
        helpers = (os.getppid(), os.getpid(), *helpers_of(feed))

        def __call__(self, step: int) -> Any:
            return feed(step)

    assert helpers_of(Claims()) == helpers_of(feed) and len(helpers_of(feed)) == 1


def test_an_error_in_the_thread_is_raised_in_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no such sample")

    monkeypatch.setattr("harness.training.feeds.own_batch", broken)
    with pytest.raises(ValueError, match="no such sample"):
        batches(tmp_path, "prefetched", 3)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"files.prefetch": 0}, "files.prefetch = 0"),
        ({"files.workers": 1000}, "files.workers = 1000"),
        ({"files.dataset_mb": 0.0}, "files.dataset_mb = 0.0"),
        ({"files.rate": 1}, "files.rate"),
    ],
)
def test_a_bad_value_is_one_clear_error(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        KNOWN.normalise(SITE.case("ddp/mlp-nano", data="files", knobs=knobs))
    with pytest.raises(SpecError, match="no input named 'filez': did you mean 'files'"):
        KNOWN.normalise(SITE.case("ddp/mlp-nano", data="filez"))


def test_samples_of_different_lengths_are_refused() -> None:
    case = KNOWN.normalise(SITE.case("ddp/ragged-nano", data="files"))
    description = describe(load(KNOWN.files(case)), case)
    assert (
        description.unsupported == "data=files needs samples of one length, but the model's differ"
    )


CAUGHT_BY = {"same_shard": "input.content", "no_set_epoch": "input.content"}


@pytest.mark.few(1)
@pytest.mark.parametrize("bug", ["none", *CAUGHT_BY])
def test_an_input_with_wrong_batches_is_caught(launch: Any, bug: str) -> None:
    world = launch("ddp/mlp-nano", 2, data="mutant_input", knobs={"mutant_input.bug": bug})
    assert world.cause is None
    failed = {c.name for c in world.failed}
    assert CAUGHT_BY[bug] in failed if bug != "none" else not failed


def test_workers_that_do_not_work_are_an_error(launch: Any) -> None:
    knobs = {"mutant_input.bug": "no_workers"}
    world = launch("ddp/mlp-nano", 2, Purpose.TIMED, data="mutant_input", knobs=knobs)
    assert world.cause is not None and "0 of 2 workers made batches" in world.cause.message


def test_a_launch_with_workers_is_clean_and_leaves_no_files(launch: Any) -> None:
    knobs = {"files.decode_ms": 0.5, "files.workers": 1}
    world = launch("ddp/mlp-nano", 2, Purpose.TIMED, data="files", knobs=knobs)
    assert world.cause is None
    for rank in world.ranks:
        assert rank.shared == () and rank.ran.fed is not None
        assert rank.ran.fed["decode_s"] > rank.ran.fed["read_s"]
    assert not list(world.out.glob("work*"))


def test_a_slow_disk_is_named(launch: Any) -> None:
    knobs = {"mutant_input.bug": "slow_disk"}
    world = launch("ddp/mlp-nano", 2, Purpose.TIMED, data="mutant_input", knobs=knobs)
    fed = world.ranks[0].ran.fed
    assert fed is not None and fed["read_s"] > 10 * fed["decode_s"]
