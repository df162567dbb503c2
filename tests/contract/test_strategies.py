"""Every strategy, model and compressor, on real processes, against the single-device reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.base import stats
from harness.record import Purpose
from harness.spec import Catalogue, Precision

KNOWN = Catalogue().entries
STRATEGIES = [s for s in KNOWN["strategies"] if s not in ("single", "compressed")]
CODECS = [c for c, e in KNOWN["compressors"].items() if not e.head.get("CONTROL")]
SMALLEST = [f"{m}-{next(iter(e.head['SIZES']))}" for m, e in KNOWN["models"].items()]


def right(world: Any) -> None:
    """Every rank finished, checked something, and every check holds."""
    assert world.cause is None, world.ends
    assert all(len(r.checks) > 10 for r in world.ranks)
    assert world.failed == []


#: Four ranks on two cores take seconds a launch: in CI on the smallest model, else -m full. What a
#: strategy makes of a real model is tested on two ranks, on each model.
WORLDS = [2, pytest.param(4, marks=pytest.mark.full)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_trains_on_four_ranks_as_on_one(launch: Any, strategy: str) -> None:
    right(launch(f"{strategy}/mlp-nano", 4))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("model", SMALLEST)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_trains_as_one_device_would(
    launch: Any, strategy: str, model: str, world: int
) -> None:
    knobs = {"paced.step_ms": 2.0} if model.startswith("paced") else {}
    right(launch(f"{strategy}/{model}", world, knobs=knobs))


@pytest.mark.full
def test_what_is_noted_of_steps_does_not_grow(launch: Any) -> None:
    """Else people would look for a leak in their model: a loss kept as a tensor of its own takes
    45 kB a step, since FSDP frees its heap around it. ``benchmarks/cost/growth.py`` has the bare
    loop beside it.
    """
    world = launch("fsdp/decoder-nano", 2, Purpose.TIMED, steps=200)
    assert world.cause is None
    with np.load(world.out / "rank0.npz") as samples:
        assert stats.slope(samples["rss_bytes"][100::2].astype(float).tolist()).mean < 2 * 15_000


def test_compressor_keeps_its_promise_on_four_ranks(launch: Any) -> None:
    right(launch("compressed:topk/mlp-nano", 4))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "model", ["mlp-nano", pytest.param("decoder-nano", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("codec", CODECS)
def test_compressor_keeps_its_promise(launch: Any, codec: str, model: str, world: int) -> None:
    right(launch(f"compressed:{codec}/{model}", world))


@pytest.mark.parametrize("strategy", ["single", *STRATEGIES])
def test_one_rank_is_bit_equal_to_plain(launch: Any, strategy: str) -> None:
    right(launch(f"{strategy}/mlp-nano", 1))


@pytest.mark.parametrize("world", [3])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_worlds_that_are_no_power_of_two(launch: Any, strategy: str, world: int) -> None:
    right(launch(f"{strategy}/mlp-nano", world))


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AUTOCAST])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_reduced_precision(launch: Any, strategy: str, precision: Precision) -> None:
    right(launch(f"{strategy}/mlp-nano", 2, precision=precision))


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AUTOCAST])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_reduced_precision_is_right_with_every_seed(
    launch: Any, strategy: str, precision: Precision, world: int
) -> None:
    """Rounding to 8 bits differs with the data: a tolerance that is too tight is a false ERROR."""
    if strategy == "pipeline" and precision is Precision.AUTOCAST:
        pytest.skip("a pipeline does not support autocast")
    for seed in range(20):
        right(launch(f"{strategy}/mlp-nano", world, precision=precision, seed=seed))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_accumulation(launch: Any, strategy: str) -> None:
    right(launch(f"{strategy}/mlp-nano", 2, accumulate=2))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_activation_checkpointing(launch: Any, strategy: str) -> None:
    right(launch(f"{strategy}/mlp-nano", 2, checkpoint=True))


@pytest.mark.parametrize(
    ("strategy", "knobs"),
    [
        ("ddp", {"ddp.bucket_cap_mb": 0.1}),
        ("ddp", {"ddp.static_graph": True}),
        ("fsdp", {"fsdp.reshard": False}),
        ("pipeline", {"pipeline.schedule": "1f1b"}),
        ("pipeline", {"pipeline.microbatches": 4}),
    ],
)
def test_knobs(launch: Any, strategy: str, knobs: dict[str, Any]) -> None:
    right(launch(f"{strategy}/mlp-small", 2, knobs=knobs))


def test_uncompressed_hook_is_bit_equal_to_ddp(launch: Any) -> None:
    world = launch("compressed:none/decoder-nano", 2)
    right(world)
    assert all(c.value == 0.0 for c in world.ranks[0].checks if c.name.endswith("step1_gradient"))


@pytest.mark.parametrize("strategy", ["ddp/synthetic-small", "fsdp/mlp-wide", "pipeline/mlp-wide"])
@pytest.mark.parametrize("world", WORLDS)
def test_sent_bytes_are_the_closed_form(launch: Any, strategy: str, world: int) -> None:
    """0.998 to 1.005 per rank, counted on the sockets, for messages of half a megabyte and more."""
    knobs = {"synthetic.grad_mb": 16.0} if "synthetic" in strategy else {}
    fields = {"micro_batch": 1024} if "pipeline" in strategy else {}
    if "pipeline" in strategy:
        knobs = {"pipeline.microbatches": 4}
    found = launch(strategy, world, Purpose.TIMED, steps=6, cut=2, knobs=knobs, **fields)
    assert found.cause is None
    expected = found.described.expected
    assert expected.largest_message >= 500_000
    for rank, want in zip(found.ranks, expected.sent_bytes, strict=True):
        assert 0.998 <= rank.sent_bytes / (4 * want) <= 1.005


def test_a_rank_imports_nothing_of_torch_after_the_fork(launch: Any) -> None:
    """An optimizer's lazy import alone would cost a second in every launch."""
    for name in (
        "ddp/decoder-nano",
        "fsdp/mlp-nano",
        "pipeline/mlp-nano",
        "compressed:powersgd/mlp-nano",
    ):
        world = launch(name, 2, Purpose.TIMED)
        assert all(r.modules_after_fork == () for r in world.ranks), world.ranks[
            0
        ].modules_after_fork


def test_what_ran_is_observed(launch: Any) -> None:
    ddp = launch("ddp/decoder-nano", 2, Purpose.TIMED).ranks[0]
    fsdp = launch("fsdp/decoder-nano", 2, Purpose.TIMED).ranks[0]
    pipe = launch("pipeline/decoder-nano", 2, Purpose.TIMED).ranks
    assert (ddp.ran.module, ddp.backend, ddp.tuned_threads) == (
        "DistributedDataParallel",
        "gloo",
        1,
    )
    assert fsdp.ran.placements == ("Shard(dim=0)",)
    assert pipe[0].ran.schedule == "ScheduleGPipe"
    assert "embed" in pipe[0].ran.placements[0] and "head" in pipe[1].ran.placements[0]
    assert len({r.affinity for r in pipe}) == 2


def test_two_launches_give_the_same_losses(launch: Any) -> None:
    a = launch("ddp/decoder-nano", 2, Purpose.TIMED).ranks[0]
    b = launch("ddp/decoder-nano", 2, Purpose.TIMED).ranks[0]
    assert (a.first_loss, a.last_loss) == (b.first_loss, b.last_loss)
    assert a.last_loss < a.first_loss, "it learns"
