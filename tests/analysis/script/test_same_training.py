"""Differences between the training of two launches are found; each is injected into records without
any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.script.same_training import may_be_ragged, norms_over, unlike
from harness.cases import CaseSpec, Mode
from harness.record import LaunchRecord, Purpose, RunRecord, ScriptObservations


def test_ragged_batches_in_a_short_window_may_be_measured_again() -> None:
    assert may_be_ragged(
        "count: a step has 60.5 samples, 32 on one rank: weak scaling would have 64"
    )
    asked = (
        "count: a step has 32 samples, 32 on one rank: weak scaling would have 64 (--mode strong?)"
    )
    assert not may_be_ragged(asked) and not may_be_ragged("optimizers: SGD steps here")


SEEN = ScriptObservations(
    world_size=1, backend="gloo", optimizers=("AdamW",), backwards=1, regular=True, even=True,
    roots={"net": 32}, start="s", first="0", sharded=False, parameter_bytes=4, collectives={},
    source="f", flops=1e6, whole=0, parallel=True,
)  # fmt: skip


class Script:
    """Weak-scaling launches of a script on one rank and on two, as a correct training run records
    them.
    """

    def __init__(self, run: RunRecord) -> None:
        timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
        two = next(x for x in timed if len(x.ranks) == 2)
        assert two.steps is not None
        self.case: CaseSpec = run.plan_of[two.plan].arm(two.arm).case
        self.two = self.watched(replace(two, consumed=64 * two.steps.count), "21")
        changed = replace(two, ranks=two.ranks[:1], consumed=32 * two.steps.count)
        self.one = self.watched(changed, "42")

    def watched(self, launch: LaunchRecord, first: str) -> LaunchRecord:
        """Return the launch with observations: each rank computes 32 samples per step, and the
        hashes of the first samples have equal sums.
        """
        seen = replace(SEEN, world_size=len(launch.ranks), first=first, flops=32e6)
        ran = replace(launch.ranks[0].ran, compute_dtype="float32")
        ranks = tuple(replace(r, watched=seen, grad_norm=1.0, ran=ran) for r in launch.ranks)
        return replace(launch, ranks=ranks)

    def why(self, mine: LaunchRecord | None = None, **more: Any) -> str | None:
        return unlike(self.case, [mine or self.two], [self.one], **more)


@pytest.fixture
def script(sample_run: RunRecord) -> Script:
    return Script(sample_run)


def seeing(**fields: Any) -> Callable[[LaunchRecord], LaunchRecord]:
    """Return an edit of what the hooks observed on every rank."""

    def edit(launch: LaunchRecord) -> LaunchRecord:
        ranks = []
        for rank in launch.ranks:
            assert rank.watched is not None
            ranks.append(replace(rank, watched=replace(rank.watched, **fields)))
        return replace(launch, ranks=tuple(ranks))

    return edit


def norms(value: float) -> Callable[[LaunchRecord], LaunchRecord]:
    return lambda x: replace(x, ranks=tuple(replace(r, grad_norm=value) for r in x.ranks))


def returns(dtype: str) -> Callable[[LaunchRecord], LaunchRecord]:
    return lambda x: replace(
        x, ranks=tuple(replace(r, ran=replace(r.ran, compute_dtype=dtype)) for r in x.ranks)
    )


def test_launches_of_the_same_training_do_not_differ(script: Script) -> None:
    assert script.why() is None
    assert script.why(norms(1.00005)(script.two)) is None, (
        "a relative difference of 5e-5 is rounding"
    )


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (seeing(source="g"), "the script's file was changed"),
        (seeing(optimizers=("SGD",)), "optimizers: ('SGD',) step here"),
        (returns("bfloat16"), "the forward pass returns bfloat16 here, float32 on one rank"),
        (lambda x: replace(x, consumed=x.consumed // 2), "(--mode strong?)"),
        (seeing(flops=16e6), "work: a sample takes 0.5 of the FLOPs"),
        (seeing(distinct=0.5), "is a part of the batch repeated?"),
        (norms(2.0), "is the loss or the gradient summed, not averaged?"),
        (norms(0.5), "is the loss or the gradient divided twice, or clipped?"),
    ],
)
def test_the_difference_between_two_trainings_is_reported(
    script: Script, edit: Callable[[LaunchRecord], LaunchRecord], why: str
) -> None:
    assert why in (script.why(edit(script.two)) or "")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (seeing(start="t"), "begin with different parameters"),
        (seeing(start="t", way="fresh"), "use --fresh"),
    ],
)
def test_launches_of_one_world_must_start_with_equal_parameters(
    script: Script, edit: Callable[[LaunchRecord], LaunchRecord], why: str
) -> None:
    again = edit(replace(script.two, launch="again"))
    assert why in (unlike(script.case, [script.two, again], [script.one]) or "")


def test_each_launch_may_use_another_seed(script: Script) -> None:
    """For example, rl_games uses the time as the seed."""
    again = seeing(start="t", seed="2")(replace(script.two, launch="again"))
    assert unlike(script.case, [seeing(seed="1")(script.two), again], [script.one]) is None


def test_a_mean_over_different_numbers_of_tokens_is_not_called_a_sum(script: Script) -> None:
    """For example, ranks group the same padded texts differently; the report's table shows the
    ratio.
    """
    two = norms(1.086)(script.two)
    assert script.why(two) is None and norms_over(two, script.one) == pytest.approx(1.086)
    assert script.why(norms(1.45)(script.two)) is not None


def test_another_world_may_have_another_seed(script: Script) -> None:
    """If the seeds differ, the gradients are not compared."""
    assert script.why(norms(2.0)(seeing(start="t")(script.two))) is None


def test_no_mode_is_suggested_that_does_not_fit_either(script: Script) -> None:
    odd = replace(script.two, consumed=script.two.consumed * 3 // 4)
    why = script.why(odd) or ""
    assert why.startswith("count: a step has") and "--mode" not in why


def test_two_versions_of_a_script_must_train_the_same_model(script: Script) -> None:
    edited = seeing(source="g")(script.two)
    assert script.why(edited, edited=True) is None
    assert "so the speeds are not comparable" in (script.why(norms(3.0)(edited), edited=True) or "")


@pytest.mark.parametrize("edit", [seeing(first="3"), seeing(random=True)])
def test_gradients_are_compared_only_for_the_same_samples(
    script: Script, edit: Callable[[LaunchRecord], LaunchRecord]
) -> None:
    """If other samples were drawn, or dropout is random, nothing follows from the norms."""
    assert script.why(norms(2.0)(edit(script.two))) is None


def test_without_a_seed_launches_may_start_with_different_parameters(script: Script) -> None:
    script.one = seeing(seeded=False)(script.one)
    assert script.why(norms(2.0)(seeing(seeded=False, start="t")(script.two))) is None


def test_norms_of_shards_are_combined_before_comparison(script: Script) -> None:
    """Two halves of a gradient of norm 1 have the norms 0.6 and 0.8."""
    first, second = seeing(sharded=True)(script.two).ranks
    halves = (replace(first, grad_norm=0.6), replace(second, grad_norm=0.8))
    assert script.why(replace(script.two, ranks=halves)) is None


def test_replicas_that_each_read_the_whole_data_set_are_reported(script: Script) -> None:
    script.one = seeing(whole=1000, stored="d")(script.one)
    drawn = seeing(whole=1000, stored="d")(script.two)
    assert "is a DistributedSampler missing?" in (script.why(drawn) or "")
    assert script.why(seeing(whole=500, stored="d")(script.two)) is None, (
        "each replica reads a part"
    )
    assert script.why(seeing(parallel=False)(drawn)) is None, "the ranks are stages of one model"


def test_strong_scaling_keeps_the_total_number_of_samples(script: Script) -> None:
    script.case = replace(script.case, mode=Mode.STRONG, global_batch=32)
    assert "(--mode weak?)" in (script.why() or "")
    same = replace(script.two, consumed=script.one.consumed)
    assert script.why(seeing(flops=16e6)(same)) is None
