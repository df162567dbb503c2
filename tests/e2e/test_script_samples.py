"""Samples of trainings that are not rows of one tensor, and mistakes that their content hides."""

from __future__ import annotations

import pytest
from test_script import Measured, measured, session

from harness.cases import Mode
from harness.interface.report.script import lines as script_table
from harness.record import Status

__all__ = ["measured", "session"]  # fixtures


@pytest.mark.parametrize(
    "shape",
    [
        "images",
        "detection",
        pytest.param("dicts", marks=pytest.mark.full),
        "time first",
        pytest.param("two inputs", marks=pytest.mark.full),
    ],
)
def test_samples_are_counted_as_what_they_are(measured: Measured, shape: str) -> None:
    verdict = measured("shapes.py", shape)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    for ranks in (1, 2):
        (launch, *_) = measured.launches(ranks)
        assert launch.steps is not None and launch.consumed == 16 * ranks * launch.steps.count


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("packed", "1 rows reach the model in a step for which its loader hands out 16 samples"),
        ("graph", "47 rows reach the model"),
        pytest.param("ambiguous", "a batch of 16 reaches the model as", marks=pytest.mark.full),
        ("no loader", "the model gets a list of 16 tensors (3, 8, 8): samples, or inputs"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    measured: Measured,
    shape: str,
    says: str,
) -> None:
    verdict = measured("shapes.py", shape)
    assert verdict.status is Status.ERROR and says in verdict.detail, verdict.detail
    assert "--samples-per-step N" in verdict.detail


@pytest.mark.full
def test_what_is_not_understood_is_measured_as_declared(measured: Measured) -> None:
    verdict = measured("shapes.py", "packed", samples=16)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 32 * two.steps.count


def test_a_strong_ladder_run_as_a_weak_one_is_told(measured: Measured) -> None:
    verdict = measured("shapes.py", "images", "--divide")
    assert verdict.status is Status.ERROR and "(--mode strong?)" in verdict.detail, verdict.detail
    strong = measured("shapes.py", "images", "--divide", mode=Mode.STRONG)
    assert strong.value is not None and measured.wrong() == [], strong.detail


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
        pytest.param(("no set_epoch",), "is sampler.set_epoch", marks=pytest.mark.full),
    ],
)
def test_mistakes_that_content_hides_are_named(
    measured: Measured,
    words: tuple[str, ...],
    says: str,
) -> None:
    verdict = measured("shapes.py", "views", "--mistake", *words)
    assert verdict.status is Status.ERROR and says in verdict.detail, verdict.detail


@pytest.mark.parametrize("right", ["peeks", pytest.param("--fsdp", marks=pytest.mark.full)])
def test_what_only_looks_like_a_mistake_is_none(measured: Measured, right: str) -> None:
    words = (right,) if right == "--fsdp" else ("--mistake", right)
    verdict = measured("shapes.py", "views", *words)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("searches", "find_unused_parameters=True searches the graph in every step"),
        ("rank 0 evaluates", "rank 0 evaluates within the window"),
    ],
)
def test_what_costs_time_and_is_right_is_a_remark(
    measured: Measured,
    mistake: str,
    says: str,
) -> None:
    verdict = measured("shapes.py", "views", "--mistake", mistake)
    assert verdict.value is not None, verdict.detail
    record = measured.session.run.record(complete=False)
    told = " ".join(" ".join(script_table(record)).split())
    assert says in told, told
