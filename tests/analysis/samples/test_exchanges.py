"""Gradients are exchanged as often as weights are updated: more is named, with what may be why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.samples.script import _in_parts, _where, accumulated, extra_exchange, shards
from harness.interface.report.script.checks import _replicas
from harness.record import CollectiveCount, ScriptObservations

BYTES = 1_000_000


def seen(times: float, updates: int, passes: int) -> ScriptObservations:
    return ScriptObservations(
        world_size=2, backend="gloo", optimizers=("Adam",) * updates, backwards=passes, regular=True,
        even=True, roots={}, start="", first="", sharded=False, parameter_bytes=BYTES,
        collectives={"all_reduce": CollectiveCount(count=1, payload_bytes=round(times * BYTES))},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("times", "updates", "passes"),
    [
        (1.0, 1, 1),
        (1.0, 1, 4),  # accumulates with no_sync
        (0.5, 1, 1),  # compressed
        (1.0, 2, 3),  # a GAN of two wrapped networks
        (2.0, 2, 2),  # one wrapper around both: what is not trained is exchanged, too
        (0.0, 1, 1),
    ],
)
def test_an_exchange_for_each_update_is_right(times: float, updates: int, passes: int) -> None:
    assert extra_exchange(seen(times, updates, passes)) == ""
    assert accumulated(seen(times, updates, passes)) == ""


@pytest.mark.parametrize(("times", "reduced"), [(1.7, 0.7), (2.4, 0.7), (3.0, 1.0)])
def test_statistics_of_forward_passes_are_no_gradients(times: float, reduced: float) -> None:
    """Nor is as much again in their backward pass; a second all-reduce of all is more than that."""
    watched = replace(seen(times, 1, 1), reduced=round(reduced * BYTES))
    assert extra_exchange(watched) == ""
    hidden = times - reduced > 1.25
    checks = dict(_replicas([watched]))
    assert (checks["gradients exchanged once"] is not None) == hidden
    twice = replace(seen(times + 1.4, 1, 1), reduced=round(reduced * BYTES))
    assert "is there a second all-reduce" in extra_exchange(twice)


@pytest.mark.parametrize(
    ("times", "updates", "passes", "said"),
    [
        (2.0, 1, 1, ["is there a second all-reduce"]),
        (
            4.0,
            1,
            4,
            ["in each of 4 backward passes: is no_sync() missing while gradients accumulate?"],
        ),
        (2.0, 1, 2, ["is no_sync() missing", "or is there a second all-reduce"]),
        (4.0, 2, 2, ["a step of 2 updates", "is there a second all-reduce"]),
    ],
)
def test_more_is_named(times: float, updates: int, passes: int, said: list[str]) -> None:
    named = extra_exchange(seen(times, updates, passes)) or accumulated(
        seen(times, updates, passes)
    )
    assert all(words in named for words in said), named


def test_what_accumulates_and_exchanges_in_each_pass_is_slow_and_right() -> None:
    """No error: a ladder of it can be measured."""
    assert extra_exchange(seen(4.0, 1, 4)) == "" != accumulated(seen(4.0, 1, 4))


def test_parameters_without_gradients_are_not_exchanged() -> None:
    """Four exchanges of a head's gradients are no part of one of the whole model's."""
    of_head = replace(seen(0.4, 1, 4), trained_bytes=BYTES // 10)
    assert "in each of 4 backward passes" in accumulated(of_head)
    assert accumulated(replace(of_head, trained_bytes=0)) == ""


@pytest.mark.parametrize(("gathers", "said"), [(2, True), (4, False)])
def test_shards_that_are_exchanged_as_needed_are_said_to_be(gathers: int, *, said: bool) -> None:
    """A check that held is listed, and one that did not is a remark instead."""
    sharded = replace(
        seen(0.0, 1, 1),
        sharded=True,
        parallel=True,
        collectives={"all_gather": CollectiveCount(count=1, payload_bytes=gathers * BYTES // 2)},
    )
    listed = [what for what, _ in _replicas([sharded])]
    assert ("shards exchanged as often as needed" in listed) is said
    assert bool([*shards(sharded)]) is not said


def test_tables_that_ranks_swap_are_parts_though_they_begin_alike() -> None:
    """DLRM: every rank is given the whole batch, has tables of its own, and one seed makes these."""
    cut = replace(seen(1.0, 1, 1), cut=True, sharded=True)
    swapped = {**cut.collectives, "all_to_all": CollectiveCount(count=2, payload_bytes=32_768)}
    assert _in_parts([replace(cut, collectives=swapped)] * 2)
    assert not _in_parts([cut] * 2), "a batch that nobody shares out"


def test_frozen_modules_are_none_of_those_that_are_alike() -> None:
    names, bits = ("body", "lora"), [("0", "a"), ("0", "b")]
    assert _where(names, bits) == " in lora (the other module is equal)"
    assert _where(names, bits, trained=[False, True]) == "", "all that train differ"
    assert _where(names, bits, trained=[True, True]).startswith(" in lora")
