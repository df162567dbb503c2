"""Gradients should be exchanged once per weight update; more exchanges are reported with a likely
cause.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.script.exchanges import accumulated, extra_exchange, shards
from harness.analysis.script.replicas import _where, in_parts
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
        (1.0, 1, 4),  # The loop accumulates gradients with no_sync.
        (0.5, 1, 1),  # The gradients are compressed.
        (1.0, 2, 3),  # The script trains a GAN of two wrapped networks.
        # One wrapper holds both networks, so gradients of the untrained one are exchanged, too.
        (2.0, 2, 2),
        (0.0, 1, 1),
    ],
)
def test_one_exchange_per_update_is_correct(times: float, updates: int, passes: int) -> None:
    assert extra_exchange(seen(times, updates, passes)) == ""
    assert accumulated(seen(times, updates, passes)) == ""


@pytest.mark.parametrize(("times", "reduced"), [(1.7, 0.7), (2.4, 0.7), (3.0, 1.0)])
def test_statistics_of_forward_passes_are_not_counted_as_gradients(
    times: float, reduced: float
) -> None:
    """The same bytes in the backward pass are not counted either; a second all-reduce of all
    gradients is larger.
    """
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
def test_extra_exchanges_are_reported_with_a_cause(
    times: float, updates: int, passes: int, said: list[str]
) -> None:
    named = extra_exchange(seen(times, updates, passes)) or accumulated(
        seen(times, updates, passes)
    )
    assert all(words in named for words in said), named


def test_exchanging_in_each_accumulation_pass_is_slow_but_correct() -> None:
    """This is not an error, so a scaling sweep of it can be measured."""
    assert extra_exchange(seen(4.0, 1, 4)) == "" != accumulated(seen(4.0, 1, 4))


def test_parameters_without_gradients_are_not_exchanged() -> None:
    """Four exchanges of a head's gradients are less than one exchange of the whole model's."""
    of_head = replace(seen(0.4, 1, 4), trained_bytes=BYTES // 10)
    assert "in each of 4 backward passes" in accumulated(of_head)
    assert accumulated(replace(of_head, trained_bytes=0)) == ""


@pytest.mark.parametrize(("gathers", "said"), [(2, True), (4, False)])
def test_the_exchange_of_shards_is_listed_as_a_check_or_as_a_remark(
    gathers: int, *, said: bool
) -> None:
    """A check that passed is listed; otherwise a remark is printed instead."""
    sharded = replace(
        seen(0.0, 1, 1),
        sharded=True,
        parallel=True,
        collectives={"all_gather": CollectiveCount(count=1, payload_bytes=gathers * BYTES // 2)},
    )
    listed = [what for what, _ in _replicas([sharded])]
    assert ("shards exchanged as often as needed" in listed) is said
    assert bool([*shards(sharded)]) is not said


def test_embedding_tables_with_equal_initial_values_are_shards() -> None:
    """In DLRM, every rank gets the whole batch and has separate tables, which one seed initializes
    equally.
    """
    cut = replace(seen(1.0, 1, 1), cut=True, sharded=True)
    swapped = {**cut.collectives, "all_to_all": CollectiveCount(count=2, payload_bytes=32_768)}
    assert in_parts([replace(cut, collectives=swapped)] * 2)
    assert not in_parts([cut] * 2), "without an all-to-all, the ranks do not divide the batch"


def test_frozen_modules_are_ignored_when_modules_are_compared() -> None:
    names, bits = ("body", "lora"), [("0", "a"), ("0", "b")]
    assert _where(names, bits) == " in lora (the other module is equal)"
    assert _where(names, bits, trained=[False, True]) == "", "all trained modules differ"
    assert _where(names, bits, trained=[True, True]).startswith(" in lora")
