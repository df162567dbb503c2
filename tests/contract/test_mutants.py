"""The correctness check detects every known-incorrect training run, by a check that names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.judging.notices import overloaded
from harness.analysis.samples.figures import _collapsed
from harness.cases import Precision
from harness.record import Purpose

CAUGHT_BY = {
    "no_all_reduce": "step1_gradient",
    "sum_for_mean": "step1_gradient",
    "times_1_01": "step1_gradient",
    "one_tensor": "step1_gradient",
    "same_shard": "samples_once_per_epoch",
    "no_broadcast": "start_parameters",
    "reduced_after_step": "parameters_after_4",
    "skip_second_backward": "parameters_after_4",
    "dropped_batch": "parameters_after_4",
    "no_set_epoch": "epochs_differ",
    "reduced_twice": "bytes.all_reduce",
    "nothing_to_compare": "all_gradients",
    "one_left_out": "all_parameters",
}


def test_the_correct_twin_of_the_mutants_passes(launch: Any) -> None:
    world = launch("mutant/mlp-nano", 2)
    assert world.cause is None
    assert world.failed == []


@pytest.mark.few(3)
@pytest.mark.parametrize("bug", CAUGHT_BY)
@pytest.mark.parametrize("model", ["mlp-nano", pytest.param("paced-small", marks=pytest.mark.full)])
def test_mutant_is_caught(launch: Any, bug: str, model: str) -> None:
    knobs = {"mutant.bug": bug}
    if model.startswith("paced"):
        knobs["paced.step_ms"] = 2.0
    world = launch(f"mutant/{model}", 2, knobs=knobs)
    assert world.cause is None
    assert any(c.name.endswith(CAUGHT_BY[bug]) for c in world.failed), world.failed


@pytest.mark.few(1)
@pytest.mark.parametrize("bug", ["times_1_01", "sum_for_mean", "one_tensor"])
def test_mutant_is_caught_if_bits_cannot_be_compared(launch: Any, bug: str) -> None:
    """Four ranks add in another order than the reference, but the tolerance must be tight."""
    world = launch("mutant/mlp-nano", 4, knobs={"mutant.bug": bug})
    assert any(c.name.endswith("step1_gradient") for c in world.failed)


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AUTOCAST])
@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_mutant_is_caught_in_reduced_precision(
    launch: Any, bug: str, precision: Precision, world: int
) -> None:
    """The tolerance for rounding hides no incorrect training, because a wrong factor remains."""
    wrong = launch("mutant/mlp-nano", world, knobs={"mutant.bug": bug}, precision=precision)
    assert wrong.cause is None
    names = (CAUGHT_BY[bug], "step1_gradient_scale", "replicas")
    assert any(c.name.endswith(names) for c in wrong.failed), wrong.failed


@pytest.mark.full
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AUTOCAST])
@pytest.mark.parametrize("bug", ["reduced_after_step", "skip_second_backward", "dropped_batch"])
def test_what_a_router_may_round_otherwise_hides_no_wrong_update(
    launch: Any, bug: str, precision: Precision
) -> None:
    """Tokens may go to other experts, so the limit of an update is derived from re-rounded runs."""
    wrong = launch("mutant/moe-nano", 3, knobs={"mutant.bug": bug}, precision=precision)
    assert any(c.name == "sgd.parameters_after_4" for c in wrong.failed), wrong.failed


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AUTOCAST])
def test_a_factor_of_one_percent_is_caught_in_reduced_precision(
    launch: Any, precision: Precision, seed: int
) -> None:
    """This includes a gradient so small that differences of rounding are as large as 1 %."""
    knobs = {"mutant.bug": "times_1_01"}
    wrong = launch("mutant/mlp-nano", 4, knobs=knobs, precision=precision, seed=seed)
    assert any(c.name.endswith("step1_gradient_scale") for c in wrong.failed)


def test_accumulation_without_division_is_caught(launch: Any) -> None:
    world = launch(
        "mutant/mlp-nano", 2, knobs={"mutant.bug": "accumulation_undivided"}, accumulate=4
    )
    assert any(c.name.endswith("step1_gradient") for c in world.failed)


def test_accumulation_without_no_sync_is_caught_by_its_bytes(launch: Any) -> None:
    right = launch("ddp/mlp-nano", 2, accumulate=4)
    wrong = launch("mutant/mlp-nano", 2, knobs={"mutant.bug": "no_no_sync"}, accumulate=4)
    assert right.failed == []
    sent = next(c for c in wrong.failed if c.name == "bytes.all_reduce")
    assert sent.value == pytest.approx(5 * sent.limit, rel=0.01)
    assert not any("gradient" in c.name for c in wrong.failed), "only the bytes reveal it"


def test_autocast_that_does_nothing_is_caught(launch: Any) -> None:
    right = launch("ddp/mlp-nano", 2, precision=Precision.AUTOCAST)
    wrong = launch(
        "mutant/mlp-nano", 2, knobs={"mutant.bug": "autocast_nothing"}, precision=Precision.AUTOCAST
    )
    assert right.failed == []
    assert any(c.name == "compute_dtype" for c in wrong.failed)


#: Family -> its model, and its bugs with the check that names each, and the needed mesh and knobs.
FAMILIES: dict[str, tuple[str, dict[str, tuple[str, str, dict[str, Any]]]]] = {
    "tensor": (
        "decoder-nano",
        {
            "qkv_apart": ("bytes.all_reduce", "", {}),
            "norms_not_reduced": ("step1_gradient", "", {"sequence": True}),
            "part_not_added": ("step1_gradient", "", {}),
            "norm_of_own_part": ("step1_gradient", "", {"clip": 1.0}),
        },
    ),
    "context": (
        "decoder-nano",
        {
            "own_block_only": ("step1_gradient", "", {}),
            "positions_from_zero": ("step1_gradient", "", {}),
            "future_seen": ("step1_gradient", "", {}),
            "loss_of_one_part": ("step1_gradient", "", {}),
        },
    ),
    "expert": (
        "moe-nano",
        {
            "divided_twice": ("step1_gradient", "", {}),
            "not_averaged": ("step1_gradient", "", {}),
            "others_dropped": ("step1_gradient", "", {}),
        },
    ),
    "pipeline": (
        "decoder-nano",
        {
            "unscaled": ("step1_gradient", "", {}),
            "stale": ("step1_gradient", "", {}),
            "norm_of_own_stage": ("step1_gradient", "", {"clip": 1.0}),
            "replicas_apart": ("step1_gradient", "pp:2,dp:2", {}),
        },
    ),
    "outer": (
        "mlp-nano",
        {
            "parameters_for_deltas": ("parameters_after_4", "", {}),
            "never_agrees": ("replicas", "", {}),
            "momentum_forgotten": ("parameters_after_4", "", {}),
            "every_step": ("bytes.all_reduce", "", {}),
        },
    ),
    "sharded": (
        "mlp-nano",
        {
            "replicas_apart": ("step1_gradient", "dp:2,fsdp:2", {}),
            "summed": ("step1_gradient", "", {}),
            "one_shard_stays": ("parameters_after_4", "", {}),
            "gathered_twice": ("bytes.all_gather", "", {}),
            "norm_of_own_shard": ("step1_gradient", "", {"clip": 1.0}),
        },
    ),
    "join": (
        "mlp-nano",
        {
            "tail_dropped": ("parameters_after_4", "", {"last_batch": 0.7}),
            "ranks_alike": ("parameters_after_4", "", {"last_batch": 0.7}),
            "idle_forget": ("replicas", "", {"last_batch": 0.5}),
        },
    ),
    "server": (
        "mlp-nano",
        {
            "not_waited": ("staleness", "", {}),
            "sent_twice": ("parameters_after_4", "", {}),
        },
    ),
}


#: One or two of each family in CI; the others are -m full.
SOONEST = {
    "qkv_apart", "own_block_only", "divided_twice", "norm_of_own_stage",
    "parameters_for_deltas", "one_shard_stays", "tail_dropped", "not_waited",
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.full] * (f not in ("join", "server"))) for f in FAMILIES],
)
def test_the_correct_twin_of_a_familys_mutants_passes(launch: Any, family: str) -> None:
    world = launch(
        f"mutant_{family}/{FAMILIES[family][0]}", 2, knobs={f"mutant_{family}.bug": "none"}
    )
    assert world.cause is None and world.failed == []


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "bug"),
    [
        pytest.param(family, bug, marks=[pytest.mark.full] * (bug not in SOONEST))
        for family, (_, bugs) in FAMILIES.items()
        for bug in bugs
    ],
)
def test_mutant_of_a_family_is_caught(launch: Any, family: str, bug: str) -> None:
    model, bugs = FAMILIES[family]
    caught_by, mesh, more = bugs[bug]
    asked = {k: v for k, v in more.items() if k in ("clip", "last_batch")}
    knobs = {f"mutant_{family}.{k}": v for k, v in {"bug": bug, **more}.items() if k not in asked}
    world = launch(f"mutant_{family}/{model}", 4 if mesh else 2, mesh=mesh, knobs=knobs, **asked)
    assert world.cause is None
    assert any(c.name.endswith(caught_by) for c in world.failed), world.failed


#: Bugs of 0/1 Adam. In bf16, signs of tiny values flip on more than two ranks, which changes a
#: fifth of an update. These bugs change hardly more, and the check of the fp32 twin names them.
SIGNS = (
    "times_1_2", "owes_nothing", "sums_owe_nothing", "one_left_out", "tenth_left_out",
    "sum_for_mean", "variance_of_one_rank", "a_step_early",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("model", ["mlp-nano", "moe-nano"])
@pytest.mark.parametrize("bug", SIGNS)
def test_signs_that_flip_in_bf16_hide_no_bug(launch: Any, bug: str, model: str) -> None:
    knobs = {"mutant_signs.bug": bug}
    wrong = launch(f"mutant_signs/{model}", 3, knobs=knobs, precision=Precision.BF16)
    assert wrong.cause is None
    assert any(c.name == "fp32.sgd.parameters_after_4" for c in wrong.failed), wrong.failed


@pytest.mark.full
@pytest.mark.parametrize("model", ["mlp-nano", "moe-nano"])
def test_signs_that_flip_in_bf16_are_no_error(launch: Any, model: str) -> None:
    knobs = {"mutant_signs.bug": "none"}
    right = launch(f"mutant_signs/{model}", 3, knobs=knobs, precision=Precision.BF16)
    assert right.cause is None and right.failed == []


@pytest.mark.full
def test_means_that_round_in_bf16_are_no_error(launch: Any) -> None:
    """The update of this seed is small, so sums in other orders differ as much as its ranks do."""
    right = launch("local_sgd/mlp-nano", 4, precision=Precision.BF16, seed=9)
    assert right.cause is None and right.failed == []
    (update,) = (c for c in right.ranks[0].checks if c.name == "sgd.parameters_after_4")
    assert 0.03 < update.value <= update.limit < 0.12


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AUTOCAST])
def test_means_that_round_hide_no_short_one(launch: Any, precision: Precision) -> None:
    knobs = {"mutant_outer.bug": "one_percent_short"}
    wrong = launch("mutant_outer/mlp-nano", 4, knobs=knobs, precision=precision)
    assert wrong.cause is None
    assert any(c.name == "fp32.sgd.parameters_after_4" for c in wrong.failed), wrong.failed


def test_a_router_that_always_chooses_the_same_experts_is_an_error(launch: Any) -> None:
    right, wrong = (
        launch("mutant_expert/moe-nano", 2, Purpose.TIMED, knobs={"mutant_expert.bug": bug})
        for bug in ("none", "collapsed")
    )
    assert [*_collapsed(right.ranks)] == []
    assert "it has collapsed" in next(_collapsed(wrong.ranks))
    launches: Any = [SimpleNamespace(ranks=wrong.ranks, dropped_share=0.7)]
    assert "times its even share" in next(overloaded(launches))
    assert next(overloaded([SimpleNamespace(ranks=right.ranks, dropped_share=0.1)]), "") == ""  # type: ignore[list-item]


#: Bugs of compressors, and the check that names each.
CODECS = {
    "sum_for_mean": "codec.telescopes",
    "wide_indices": "bytes.all_gather",
    "owes_all": "codec.telescopes",
    "owes_nothing": "codec.telescopes",
    "ranks_apart": "codec.same_bits",
    "signs_as_bytes": "bytes.all_to_all",
    "bits_not_negated": "codec.contracts",
    "one_error_only": "codec.telescopes",
    "with_replacement": "codec.unbiased",
    "global_generator": "codec.leaves_the_generator",
    "feedback_without_contraction": "codec.contracts",
}


CODECS_SOONEST = {"owes_all", "ranks_apart", "signs_as_bytes"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "bug",
    [
        "none",
        *(pytest.param(b, marks=[pytest.mark.full] * (b not in CODECS_SOONEST)) for b in CODECS),
    ],
)
def test_mutant_of_a_compressor_is_caught(launch: Any, bug: str) -> None:
    world = launch("compressed:mutant_codec/mlp-nano", 2, knobs={"mutant_codec.bug": bug})
    assert world.cause is None
    names = {c.name for c in world.failed}
    assert names == set() if bug == "none" else CODECS[bug] in names, world.failed


@pytest.mark.full
def test_masked_topk_sends_what_dense_sends(launch: Any) -> None:
    masked = launch("compressed:masked_topk/decoder-nano", 2)
    dense = launch("ddp/decoder-nano", 2)

    def sent(world: Any) -> float:
        return next(c.value for c in world.ranks[0].checks if c.name == "bytes.sent")

    assert {c.name for c in masked.failed} >= {"bytes.sent", "bytes.all_gather", "bytes.all_reduce"}
    assert sent(masked) == pytest.approx(sent(dense), rel=0.01)
    assert any("1.00x of dense" in c.detail for c in masked.failed)


@pytest.mark.full
def test_a_second_all_reduce_is_wrong_in_the_timed_launch_too(launch: Any) -> None:
    world = launch("mutant/synthetic-nano", 2, Purpose.TIMED, knobs={"mutant.bug": "reduced_twice"})
    want = world.described.expected.sent_bytes[0] * 10
    assert world.ranks[0].sent_bytes == pytest.approx(2 * want, rel=0.05)
