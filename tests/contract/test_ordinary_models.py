"""Correct training of ordinary models, with buffers and frozen layers, passes the checks."""

from __future__ import annotations

from typing import Any

import pytest

from harness.record import Purpose

MODEL = "ordinary-nano"
BUFFERS = ("mask", "batch norm", "buffer")
STRATEGIES = ("ddp_naive", "fsdp", "zero1", "compressed:topk", "local_sgd", "replicate", "fsdp1")


def named(kind: str) -> dict[str, Any]:
    return {"knobs": {"ordinary.kind": kind}}


@pytest.mark.parametrize("kind", [*BUFFERS, "frozen", "frozen within"])
def test_under_ddp(launch: Any, kind: str) -> None:
    gate = launch(f"ddp/{MODEL}", 2, **named(kind))
    assert gate.cause is None and gate.failed == []


@pytest.mark.full
@pytest.mark.parametrize("kind", [*BUFFERS, "frozen"])
def test_on_three_ranks_that_accumulate(launch: Any, kind: str) -> None:
    """Three ranks reduce in a tree; buffers are broadcast once per step even with accumulation."""
    gate = launch(f"ddp/{MODEL}", 3, accumulate=2, **named(kind))
    assert gate.cause is None and gate.failed == []


@pytest.mark.few(4)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["mask", "buffer", "frozen", "frozen within"])
def test_under_other_strategies(launch: Any, strategy: str, kind: str) -> None:
    gate = launch(f"{strategy}/{MODEL}", 2, **named(kind))
    assert gate.cause is None and gate.failed == []


@pytest.mark.parametrize("kind", ["unused", "frozen"])
def test_on_one_rank(launch: Any, kind: str) -> None:
    gate = launch(f"single/{MODEL}", 1, **named(kind))
    assert gate.cause is None and gate.failed == []


def test_unused_parameters_need_a_knob_which_is_named(launch: Any) -> None:
    gate = launch(f"ddp/{MODEL}", 2, **named("unused"))
    assert gate.cause is not None and "--set ddp.unused=true" in gate.cause.message
    assert "0.spare.weight" in gate.cause.message
    searched = {"ordinary.kind": "unused", "ddp.unused": True}
    gate = launch(f"ddp/{MODEL}", 2, knobs=searched)
    assert gate.cause is None and gate.failed == []


@pytest.mark.parametrize("kind", ["buffer", "batch norm"])
def test_the_losses_of_a_timed_launch_are_those_of_the_reference(launch: Any, kind: str) -> None:
    timed = launch(f"ddp/{MODEL}", 2, Purpose.TIMED, **named(kind))
    assert timed.cause is None and timed.failed == []


@pytest.mark.parametrize("bug", ["own buffers", "frozen here"])
def test_an_incorrect_strategy_is_still_found(launch: Any, bug: str) -> None:
    """Buffers that DDP would broadcast stay local, or the strategy itself freezes a layer."""
    kind = "buffer" if bug == "own buffers" else "frozen within"
    gate = launch(
        f"mutant_buffers/{MODEL}", 2, knobs={"ordinary.kind": kind, "mutant_buffers.bug": bug}
    )
    missed = {"own buffers": "sgd.parameters_after_4", "frozen here": "sgd.all_gradients"}
    assert missed[bug] in {check.name for check in gate.failed}, (gate.cause, gate.failed)
