"""Launches of one training, and of two: each difference planted into records that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.samples.same_training import may_be_ragged, norms_over, unlike
from harness.cases import CaseSpec, Mode
from harness.record import LaunchRecord, Purpose, RunRecord, ScriptObservations


def test_ragged_batches_of_a_short_window_are_looked_at_again() -> None:
    assert may_be_ragged("count: a step has 60.5, 32 on one rank: weak scaling would have 64")
    asked = "count: a step has 32, 32 on one rank: weak scaling would have 64 (--mode strong?)"
    assert not may_be_ragged(asked) and not may_be_ragged("optimizers: SGD steps here")


SEEN = ScriptObservations(
    world_size=1, backend="gloo", optimizers=("AdamW",), backwards=1, regular=True, even=True,
    roots={"net": 32}, start="s", first="0", sharded=False, parameter_bytes=4, collectives={},
    source="f", flops=1e6, whole=0, parallel=True,
)  # fmt: skip


class Script:
    """Launches of a script on one rank and on two, weak: as records of a right training are."""

    def __init__(self, run: RunRecord) -> None:
        timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
        two = next(x for x in timed if len(x.ranks) == 2)
        assert two.steps is not None
        self.case: CaseSpec = run.plan_of[two.plan].arm(two.arm).case
        self.two = self.watched(replace(two, consumed=64 * two.steps.count), "21")
        changed = replace(two, ranks=two.ranks[:1], consumed=32 * two.steps.count)
        self.one = self.watched(changed, "42")

    def watched(self, launch: LaunchRecord, first: str) -> LaunchRecord:
        """Each rank computes 32 samples a step; the first ones' hashes sum up to the same."""
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
    """An edit of what hooks saw on every rank."""

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


def test_one_and_the_same_training_is_not_called_another(script: Script) -> None:
    assert script.why() is None
    assert script.why(norms(1.00005)(script.two)) is None, "rounding"


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
def test_another_training_is_told_by_what_differs(
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
def test_launches_of_one_world_begin_alike(
    script: Script, edit: Callable[[LaunchRecord], LaunchRecord], why: str
) -> None:
    again = edit(replace(script.two, launch="again"))
    assert why in (unlike(script.case, [script.two, again], [script.one]) or "")


def test_each_launch_may_draw_its_own_seed(script: Script) -> None:
    """As rl_games takes the time for one."""
    again = seeing(start="t", seed="2")(replace(script.two, launch="again"))
    assert unlike(script.case, [seeing(seed="1")(script.two), again], [script.one]) is None


def test_a_mean_over_unlike_numbers_of_tokens_is_no_sum(script: Script) -> None:
    """As where ranks group the same padded texts otherwise; its table tells the ratio."""
    two = norms(1.086)(script.two)
    assert script.why(two) is None and norms_over(two, script.one) == pytest.approx(1.086)
    assert script.why(norms(1.45)(script.two)) is not None


def test_another_world_may_have_another_seed(script: Script) -> None:
    """Then nothing is said of its gradients."""
    assert script.why(norms(2.0)(seeing(start="t")(script.two))) is None


def test_no_mode_is_asked_for_that_would_not_fit_either(script: Script) -> None:
    odd = replace(script.two, consumed=script.two.consumed * 3 // 4)
    why = script.why(odd) or ""
    assert why.startswith("count: a step has") and "--mode" not in why


def test_versions_of_one_script_may_be_two_files_but_train_one_model(script: Script) -> None:
    edited = seeing(source="g")(script.two)
    assert script.why(edited, edited=True) is None
    assert "so the speeds are not comparable" in (script.why(norms(3.0)(edited), edited=True) or "")


@pytest.mark.parametrize("edit", [seeing(first="3"), seeing(random=True)])
def test_gradients_are_compared_of_the_same_samples_only(
    script: Script, edit: Callable[[LaunchRecord], LaunchRecord]
) -> None:
    """Others were drawn, or dropout leaves out others: nothing follows from their norms."""
    assert script.why(norms(2.0)(edit(script.two))) is None


def test_without_a_seed_every_launch_may_start_elsewhere(script: Script) -> None:
    script.one = seeing(seeded=False)(script.one)
    assert script.why(norms(2.0)(seeing(seeded=False, start="t")(script.two))) is None


def test_shards_add_up_to_the_norm_of_all(script: Script) -> None:
    """Two halves of a gradient of norm 1 have 0.6 and 0.8."""
    first, second = seeing(sharded=True)(script.two).ranks
    halves = (replace(first, grad_norm=0.6), replace(second, grad_norm=0.8))
    assert script.why(replace(script.two, ranks=halves)) is None


def test_replicas_that_each_draw_the_whole_data_set_are_told(script: Script) -> None:
    script.one = seeing(whole=1000, stored="d")(script.one)
    drawn = seeing(whole=1000, stored="d")(script.two)
    assert "is a DistributedSampler missing?" in (script.why(drawn) or "")
    assert script.why(seeing(whole=500, stored="d")(script.two)) is None, "a part each"
    assert script.why(seeing(parallel=False)(drawn)) is None, "stages of one model"


def test_strong_scaling_has_as_many_samples_in_all(script: Script) -> None:
    script.case = replace(script.case, mode=Mode.STRONG, global_batch=32)
    assert "(--mode weak?)" in (script.why() or "")
    same = replace(script.two, consumed=script.one.consumed)
    assert script.why(seeing(flops=16e6)(same)) is None
