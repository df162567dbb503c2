"""Samples that are not rows of one tensor, and mistakes that the content of samples hides."""

from __future__ import annotations

import shlex

import pytest

from harness.base.errors import SpecError
from harness.cases import Device, Mode, Protocol, Site
from harness.cases.script import script_plan
from harness.interface.report.headline import decide
from harness.interface.report.script import lines as script_table
from harness.record import Purpose, Status
from tests.e2e.scripts import Measured


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("images", marks=pytest.mark.full),
        pytest.param("detection", marks=pytest.mark.full),
        "dicts",
        pytest.param("time first", marks=pytest.mark.full),
        pytest.param("recurrent", marks=pytest.mark.full),
        pytest.param("two inputs", marks=pytest.mark.full),
        pytest.param("padded", marks=pytest.mark.full),
        pytest.param("nodes", marks=pytest.mark.full),
        pytest.param("graphs", marks=pytest.mark.full),
    ],
)
def test_samples_of_every_shape_are_counted(measured: Measured, shape: str) -> None:
    verdict = measured("shapes.py", shape)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    for ranks in (1, 2):
        (launch, *_) = measured.launches(ranks)
        assert launch.steps is not None and launch.consumed == 16 * ranks * launch.steps.count


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("packed", "1 row reaches the model in a step for which its loader hands out 16 samples"),
        ("graph", "47 rows reach the model"),
        pytest.param("ambiguous", "a batch of 16 reaches the model as", marks=pytest.mark.full),
        (
            "no loader",
            "the model gets a list of 16 tensors (3, 8, 8): these may be samples or inputs",
        ),
    ],
)
def test_ambiguous_batches_are_refused_with_a_fix(
    measured: Measured,
    shape: str,
    says: str,
) -> None:
    verdict = measured("shapes.py", shape)
    assert verdict.status is Status.ERROR and says in verdict.detail, verdict.detail
    assert "--samples-per-step N" in verdict.detail
    stated = (
        "if these are the 16 that its loader hands out: scaleproof run --script --cpus 2"
        f" --samples-per-step 16 -- shapes.py {shlex.quote(shape)}"
    )
    answers = decide(measured.session.run.record(complete=False))
    assert (stated in answers) == (shape != "no loader"), answers


@pytest.mark.full
def test_ambiguous_batches_are_measured_with_a_declared_number(measured: Measured) -> None:
    verdict = measured("shapes.py", "packed", samples=16)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 32 * two.steps.count


def test_a_strong_scaling_script_run_as_weak_is_reported(measured: Measured) -> None:
    verdict = measured("shapes.py", "images", "--divide")
    assert verdict.status is Status.ERROR and "(--mode strong?)" in verdict.detail, verdict.detail
    assert measured.launches(2) == [], "pilots have shown it"
    assert (
        "if ranks share one batch: scaleproof run --script --cpus 2 --mode strong"
        " -- shapes.py images --divide"
    ) in decide(measured.session.run.record(complete=False))
    strong = measured("shapes.py", "images", "--divide", mode=Mode.STRONG)
    assert strong.value is not None and measured.wrong() == [], strong.detail


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("augmented",), "draws from all 512 samples of the data set"),
        (("shuffled apart",), "draws from all 512 samples of the data set"),
        pytest.param(
            ("augmented, shuffled",), "draws from all 512 samples", marks=pytest.mark.full
        ),
        (("same data", "--fsdp"), "all 2 ranks train on the same 32 samples"),
        (("never trains again",), "is model.train() missing after an evaluation"),
    ],
)
def test_mistakes_that_content_hides_are_named(
    measured: Measured,
    words: tuple[str, ...],
    says: str,
) -> None:
    verdict = measured("shapes.py", "views", "--mistake", *words)
    assert verdict.status is Status.ERROR and says in verdict.detail, verdict.detail


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "right", ["peeks", "own data", "attacks", pytest.param("--fsdp", marks=pytest.mark.full)]
)
def test_correct_code_that_resembles_a_mistake_is_accepted(measured: Measured, right: str) -> None:
    words = (right,) if right == "--fsdp" else ("--mistake", right)
    verdict = measured("shapes.py", "views", *words)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("searches", "find_unused_parameters=True searches the graph in every step"),
        ("rank 0 evaluates", "rank 0 evaluates within the window (3 forward passes)"),
        ("made up", "a data set that stores none: correct if each rank generates other samples"),
    ],
)
def test_slow_but_correct_code_is_a_remark(
    measured: Measured,
    mistake: str,
    says: str,
) -> None:
    twelve = Protocol(steps=14, cut=2, min_blocks=1, max_blocks=1, fixed=True)
    verdict = measured("shapes.py", "views", "--mistake", mistake, protocol=twelve)
    assert verdict.value is not None, verdict.detail
    record = measured.session.run.record(complete=False)
    text = " ".join(" ".join(script_table(record)).split())
    assert says in text, text


@pytest.mark.full
def test_a_sweep_can_begin_at_two_ranks(measured: Measured) -> None:
    """The baseline is then the smallest world, and one rank is never launched."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(4,))
    verdict = measured("shapes.py", "views", first_rung=2, site=site)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert verdict.against == "smallest_fit" and not measured.launches(1)
    rates = [measured.launches(n)[0].throughput for n in (2, 4)]
    assert rates[0] and rates[1] and 0 < verdict.value < 1.1


def test_a_sweep_needs_a_larger_world_than_its_first() -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    with pytest.raises(SpecError, match="2 ranks have nothing to be compared with") as caught:
        script_plan(["-m", "train"], site, first_rung=2)
    assert "--cpus 4 --first-rung 2" in (caught.value.fix or "")
    with pytest.raises(SpecError) as caught:
        script_plan(["-m", "train"], Site(device=Device.CUDA, backend="nccl", nodes=(1,)))
    assert "--gpus 2" in (caught.value.fix or "")
    wide = Site(device=Device.CPU, backend="gloo", nodes=(8,))
    plan = script_plan(["-m", "train"], wide, first_rung=2)
    assert [a.case.world_size for a in plan.arms] == [2, 4, 8]
    assert [(c.subject, c.baseline, c.ideal) for c in plan.contrasts] == [
        ("@4", ("@2",), 2.0), ("@8", ("@2",), 4.0),
    ]  # fmt: skip


def test_a_fixed_number_of_steps_is_timed(measured: Measured) -> None:
    few = Protocol(steps=6, cut=3, min_blocks=1, max_blocks=1, fixed=True)
    verdict = measured("shapes.py", "views", "--steps", "12", protocol=few)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    every = [x for p in ("pilot", "timed") for x in measured.launches(2, Purpose(p))]
    assert {x.steps.count for x in every if x.steps} == {3}


@pytest.mark.full
def test_views_count_as_rows_unless_samples_are_declared(measured: Measured) -> None:
    """Two views of each image reach the model, like two answers in preference tuning."""
    assert measured("shapes.py", "views").value is not None and measured.wrong() == []
    assert "--samples-per-step 16 counts samples" in " ".join(measured.table().split())
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 64 * two.steps.count
    assert measured("shapes.py", "views", samples=16).value is not None and measured.wrong() == []
    assert "counts samples instead" not in measured.table()
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 32 * two.steps.count
    assert measured("loop.py", "--mistake", "left out", samples=16).value is not None
    wrong = measured("loop.py", "--mistake", "left out", samples=32)
    assert "32 reached the model in a step, 64 were declared" in wrong.detail, wrong.detail
    wrong = measured("shapes.py", "views", samples=8)
    assert "32 reached the model in a step, 8 were declared" in wrong.detail
