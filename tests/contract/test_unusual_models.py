"""Correct training of unusual models passes the checks, or is not comparable for a true reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.base.programs import load_module
from harness.record import Purpose
from harness.record.launch import NOT_COMPARABLE
from tests.contract.stand import Stand

MODEL = "unusual-nano"
FOLDER = Path(__file__).parents[1] / "mutants"
_FILE = load_module(str(FOLDER / "unusual.py"))
KINDS = [*_FILE.KINDS, *_FILE.OUTPUTS, "twice"]
DRAWS = (
    "dropout", "stochastic_depth", "random_relu", "gumbel", "variational", "encoder_layer",
    "checkpointed_dropout",
)  # fmt: skip
#: Parts of the sentences that say why a kind cannot be compared, under any strategy.
ALWAYS = {
    "assigned_buffer": "assigns the buffer",
    "lazy": "no shape before the first forward pass",
    "python_random": "Python's module random",
    "numpy_random": "numpy.random",
    "own_generator": "two passes over the same batch differ",
    "counter": "two passes over the same batch differ",
    "sparse_gradients": "is sparse",
}
DTYPES = dict.fromkeys(("complex_weights", "double_layer", "half_table"), "the parameters are of")
#: Kinds whose parameters all become bfloat16 with the precision bf16.
ONE_DTYPE = ("complex_weights", "half_table")
SHARDED = {
    **ALWAYS,
    **DTYPES,
    "momentum_teacher": "changes the frozen parameter",
    "gradient_hook": "has a hook",
    "scalars": "has no dimension",
    "channels_last": "non-contiguous parameters",
    "scripted": "ScriptModules",
    "equilibrium": "cannot train",
}
#: The same by strategy. Torch refuses some models itself, so a part of its message is expected.
REASONS = {
    "ddp": ALWAYS,
    "fsdp": SHARDED,
    "compressed:topk": {**ALWAYS, "complex_weights": "defined for real gradients"},
    "pipeline": {
        **ALWAYS,
        **DTYPES,
        **dict.fromkeys(DRAWS, "draws random numbers"),
        **dict.fromkeys(("experts_by_nonzero", "branch_on_a_value", "scripted"), "the meta device"),
    },
    "local_sgd": {**ALWAYS, **DTYPES, "gradient_hook": "has a hook", "scripted": "cannot train"},
}
#: Kinds that are no sequence of blocks, which a pipeline needs; it says so before it is launched.
WHOLE = (*_FILE.OUTPUTS, "twice")


def knobs(strategy: str, kind: str) -> dict[str, Any]:
    """Return the knobs of a case; the unused parameters of DDP need one of its own."""
    name = strategy.partition(":")[0]
    searched = {f"{name}.unused": True} if name in ("ddp", "compressed") else {}
    return {"unusual.kind": kind} | (searched if kind == "unused" else {})


def judged(launch: Any, strategy: str, kind: str, world: int, **fields: Any) -> None:
    """Assert that the correctness check passes, or that it says why it cannot be made."""
    gate = launch(f"{strategy}/{MODEL}", world, knobs=knobs(strategy, kind), **fields)
    reason = REASONS[strategy].get(kind, "")
    if fields.get("precision") == "bf16":
        reason = {**dict.fromkeys(ONE_DTYPE, ""), "orthogonal": "not finite"}.get(kind, reason)
    if reason:
        assert gate.cause is not None, f"{kind} is compared, although {reason}"
        # A refused case is not launched, but this test launches it all the same.
        why = gate.described.not_comparable or gate.cause.message
        assert (gate.cause.kind, reason in why) == (NOT_COMPARABLE, True), (why, gate.cause)
    else:
        assert gate.cause is None and gate.failed == []


def cells(strategy: str) -> list[str]:
    return [kind for kind in KINDS if strategy != "pipeline" or kind not in WHOLE]


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", cells("ddp"))
def test_under_ddp(launch: Any, kind: str) -> None:
    judged(launch, "ddp", kind, 2)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("strategy", "kind"), [(s, k) for s in REASONS if s != "ddp" for k in cells(s)]
)
def test_under_other_strategies(launch: Any, strategy: str, kind: str) -> None:
    judged(launch, strategy, kind, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    ("strategy", "kind"), [(s, k) for s in REASONS if s != "local_sgd" for k in cells(s)]
)
def test_on_more_ranks_and_in_bf16(
    launch: Any, strategy: str, kind: str, world: int, precision: str
) -> None:
    judged(launch, strategy, kind, world, precision=precision)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["mask", "dropout", "frozen_first", "batch_norm"])
def test_with_accumulation(launch: Any, kind: str) -> None:
    """Buffers are broadcast once per step, and every micro-batch draws other numbers."""
    judged(launch, "ddp", kind, 3, accumulate=2)


@pytest.mark.parametrize("kind", ["unused", "frozen_first"])
def test_on_one_rank(launch: Any, kind: str) -> None:
    gate = launch(f"single/{MODEL}", 1, knobs={"unusual.kind": kind})
    assert gate.cause is None and gate.failed == []


def test_unused_parameters_need_a_knob_which_is_named(launch: Any) -> None:
    gate = launch(f"ddp/{MODEL}", 2, knobs={"unusual.kind": "unused"})
    assert gate.cause.kind == NOT_COMPARABLE and "--set ddp.unused=true" in gate.cause.message
    assert "0.spare.weight" in gate.cause.message


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "kind",
    ["dropout", "batch_norm", "buffer", pytest.param("compiled_inside", marks=pytest.mark.full)],
)
def test_the_losses_of_a_timed_launch_are_those_of_the_reference(
    tmp_path: Path, strategy: str, kind: str
) -> None:
    stand = Stand(tmp_path, FOLDER)
    try:
        plan, described = stand.described(f"{strategy}/{MODEL}", knobs={"unusual.kind": kind})
        _, timed = stand.launch(plan, described, Purpose.REFERENCE, Purpose.TIMED)
    finally:
        stand.bench.worlds.close()
    assert timed.wrong == () and timed.compared == 16


@pytest.mark.parametrize(
    ("bug", "kind", "missed"),
    [
        ("own buffers", "buffer", "sgd.parameters_after_4"),
        ("frozen here", "frozen_within", "sgd.all_gradients"),
        ("other numbers", "dropout", "sgd.step1_gradient"),
    ],
)
def test_an_incorrect_strategy_is_still_found(
    launch: Any, bug: str, kind: str, missed: str
) -> None:
    """Buffers stay local, the strategy itself freezes a layer, or it draws other numbers."""
    wrong = {"unusual.kind": kind, "mutant_models.bug": bug}
    gate = launch(f"mutant_models/{MODEL}", 2, knobs=wrong)
    assert missed in {check.name for check in gate.failed}, (gate.cause, gate.failed)
