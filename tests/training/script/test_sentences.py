"""Where one update ends and the next begins, for every style of training."""

from __future__ import annotations

import pytest

from harness.training.script.sentences import StepSequence


def told(text: str) -> StepSequence:
    """Parse a sequence: F forward, B backward, (..) calls inside of backward, digits optimizers."""
    out = StepSequence()
    for sign in text:
        if sign == "F":
            out.passing()
        elif sign in "B(":
            out.passing()
            out.enter_backward()
            if sign == "B":
                out.leave_backward()
        elif sign == ")":
            out.leave_backward()
        else:
            out.stepped(int(sign))
    out.passing()
    return out


@pytest.mark.parametrize(
    ("style", "once", "optimizers", "sentences"),
    [
        ("plain", "FB0", 1, 1),
        ("accumulation", "FBFBFB0", 1, 1),
        ("two optimizers at once", "FB01", 2, 1),
        ("a GAN", "FB0FB1", 2, 2),
        ("a critic that steps thrice", "FB0FB0FB0FB1", 2, 4),
        ("one call for each group of parameters", "FB000", 1, 1),
        ("inside of backward", "F(012)", 3, 1),
        ("forward again inside of backward", "F(F)0", 1, 1),
        ("no module: backward alone", "B0", 1, 1),
    ],
)
def test_a_step_of_every_style(style: str, once: str, optimizers: int, sentences: int) -> None:
    seen = told(once * 8)
    assert seen.period(optimizers) == sentences
    assert len(seen.words) == 8 * sentences


def test_an_optimizer_that_has_not_stepped_leaves_the_period_open() -> None:
    assert told("FB0" * 6).period(2) is None


def test_updates_with_different_numbers_of_passes_keep_the_period() -> None:
    """A skipped step or the end of an epoch does not change the period of the optimizers."""
    assert told("FB0" * 5 + "FBFB0").period(1) == 1
    assert told("FBFB0FBFB0FB0" * 4).period(1) == 1
    assert told("FB0FB1" * 4 + "FB0FBFB1").period(2) == 2
    assert told("FB0FB1" * 4 + "FB1").period(2) is None


def test_evaluation_between_steps_changes_nothing() -> None:
    """Forward passes without gradients are not recorded."""
    assert told("FB0" * 4).words == told("FB0FB0" + "FB0FB0").words
