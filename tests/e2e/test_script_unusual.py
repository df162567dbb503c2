"""Correct training scripts of unusual forms are measured, and a mistake in each is named."""

from __future__ import annotations

import pytest

from harness.record import Status
from tests.e2e.scripts import Measured

#: Form -> the words that name its mistake.
FORMS = {
    "heads by rank": "ranks ended with different",
    "experts": "ranks ended with different parameters in Linear",
    "partial classes": "in addition to rank-specific parts",
    "plain tensors": "ranks ended with different parameters: are gradients all-reduced",
    "functional": "ranks ended with different parameters: are gradients all-reduced",
    "shards by hand": "ranks ended with different parameters",
    "trainer": "ranks ended with different parameters",
    "frozen half": "is there a second all-reduce",
    "manual": "ranks ended with different parameters",
    "armed": "ranks ended with different parameters",
    "wrapped eval": "eval: weights are updated after passes through a model in eval mode",
}
#: Forms whose samples cannot be counted -> the declared number.
STATED = {"armed": 16, "plain tensors": 16, "functional": 16, "frozen half": 16}


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize("form", FORMS)
def test_correct_training_of_an_unusual_form_is_measured(measured: Measured, form: str) -> None:
    verdict = measured("unusual.py", form, samples=STATED.get(form, 0))
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "zero_grad()" not in measured.table() and "single values in" not in measured.table()


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
def test_the_mistake_in_an_unusual_form_is_named(measured: Measured, form: str) -> None:
    verdict = measured("unusual.py", form, "--mistake", samples=STATED.get(form, 0))
    assert verdict.status is Status.ERROR and FORMS[form] in verdict.detail, verdict.detail
