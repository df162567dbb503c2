"""Correct code that resembles each injected mistake is accepted.

The mistakes themselves are in ``test_script.py`` and ``test_script_samples.py``. This file also has
mistakes that no check can call an ERROR, and tests what is reported about them.
"""

from __future__ import annotations

import pytest

from harness.cases import Mode, Protocol
from tests.e2e.scripts import Measured

#: Mistake -> the command of its correct twin.
TWINS = {
    "same data": ("loop.py",),
    "no all-reduce": ("loop.py", "--mistake", "no all-reduce", "--right"),
    "seeds": ("loop.py", "--mistake", "seeds", "--right"),
    "idle": ("styles.py", "ragged"),
    "second all-reduce": ("loop.py", "--mistake", "second all-reduce", "--right"),
    "statistics": ("loop.py", "--mistake", "statistics"),
    "statistics by forward()": ("loop.py", "--mistake", "statistics", "--right"),
    "no set_epoch": ("loop.py", "--mistake", "no set_epoch", "--rows", "8192", "--epochs", "1"),
    "cached": ("loop.py", "--rows", "128"),
    "precision": ("loop.py", "--mistake", "precision", "--right"),
    "resumed": ("loop.py", "--mistake", "resumed", "--right"),
    "half": ("loop.py", "--mistake", "half", "--right"),
    "frozen": ("loop.py", "--mistake", "frozen", "--right"),
    "evaluates": ("loop.py", "--mistake", "evaluates", "--right"),
    "repeated": ("loop.py", "--mistake", "repeated", "--right"),
    "broadcast": ("loop.py", "--mistake", "broadcast", "--right"),
    "skips": ("styles.py", "two optimizers"),
    "no no_sync": ("loop.py", "--accumulate", "4"),
    "cleared": ("loop.py", "--accumulate", "4", "--mistake", "cleared", "--right"),
    "augmented": ("shapes.py", "views", "--mistake", "augmented, sampled"),
    "shuffled apart": ("shapes.py", "views", "--mistake", "own data"),
    "same data, sharded": ("shapes.py", "views", "--fsdp"),
    "never trains again": ("shapes.py", "views", "--mistake", "all evaluate"),
    "searches": ("shapes.py", "views", "--mistake", "branches"),
    "slow": ("loop.py", "--mistake", "slow", "--right"),
    "sampler seeds": ("loop.py", "--mistake", "sampler seeds", "--right"),
    "outside": ("loop.py", "--mistake", "outside", "--right"),
    "shared out twice": ("loop.py", "--mistake", "shared out twice", "--right"),
    "alone": ("loop.py", "--mistake", "alone", "--right"),
    "drawn by a seed": ("loop.py", "--mistake", "drawn", "--unseeded"),
    "validates": ("loop.py", "--mistake", "validates"),
    "split": ("loop.py", "--mistake", "split", "--right"),
    "saves": ("loop.py", "--mistake", "saves", "--right"),
    "left behind": ("loop.py", "--mistake", "left behind", "--right"),
    "no sampler": ("loop.py", "--mistake", "budget", "--rows", "2048"),
    "skips a pass": ("loop.py", "--mistake", "short groups", "--accumulate", "4", "--rows", "480"),
    "tried": ("loop.py", "--mistake", "tried", "--unseeded"),
    "short batches": ("loop.py", "--mistake", "short batches", "--rows", "208"),
    "counted": ("loop.py", "--mistake", "counted"),
    "left out": ("shapes.py", "padded"),
    "shared optimizer": ("loop.py", "--mistake", "shared optimizer"),
    "seeds of worlds": ("loop.py", "--mistake", "seeds of worlds"),
    "schedule": ("loop.py", "--mistake", "schedule", "--right"),
    "rounded": ("loop.py", "--mistake", "rounded"),
    "no zero_grad": ("loop.py", "--mistake", "no zero_grad", "--right"),
    "evaluates a copy": ("loop.py", "--mistake", "evaluates a copy", "--right"),
}
#: Remarks that a correct training run must never get.
REMARKS = (
    "find_unused_parameters", "comes to its backward pass", "wait for it", "zero_grad()",
    "all write the file", "skipped after its forward pass", "step() called twice", "random_split", "no optimizer has",
)  # fmt: skip
WINDOW = Protocol(steps=14, cut=2, min_blocks=1, max_blocks=1, fixed=True)


@pytest.mark.full
@pytest.mark.parametrize("twin", TWINS)
def test_the_twin_of_a_mistake_raises_nothing(measured: Measured, twin: str) -> None:
    verdict = measured(*TWINS[twin], protocol=WINDOW)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert not [remark for remark in REMARKS if remark in measured.table()]


@pytest.mark.full
def test_a_slow_rank_is_a_remark_or_not_checked(measured: Measured) -> None:
    """It is not checked if other processes use the cores, too."""
    verdict = measured("loop.py", "--mistake", "slow", protocol=WINDOW)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    remark = "2cpu: rank 1 comes to its backward pass"
    assert remark in measured.table() or "whether rank 1 of 2cpu is slow itself" in measured.table()


@pytest.mark.full
def test_an_evaluation_of_one_rank_is_a_remark_or_not_checked(measured: Measured) -> None:
    """The evaluated copy has no hooks. It is found by its time if the cores are otherwise idle."""
    verdict = measured("loop.py", "--mistake", "evaluates a copy", protocol=WINDOW)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    remark = "2cpu: rank 0 takes"
    assert remark in measured.table() or "whether rank 0 of 2cpu is slow itself" in measured.table()


@pytest.mark.full
def test_discarded_gradients_are_a_remark(measured: Measured) -> None:
    verdict = measured("loop.py", "--accumulate", "4", "--mistake", "cleared", protocol=WINDOW)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert "is zero_grad() in the wrong place?" in measured.table()


@pytest.mark.full
@pytest.mark.parametrize(
    ("mistake", "remark"),
    [
        ("split", "does random_split have a seed?"),
        ("saves", "2cpu: ranks 0, 1 all write the file last.pt"),
        ("left behind", "is a batch skipped after its forward pass?"),
        ("no zero_grad", "1cpu, 2cpu: gradients still exist when the next update begins"),
        ("steps twice", "1cpu, 2cpu: an optimizer steps twice with one gradient"),
        ("head left out", "1cpu, 2cpu: parameters of 2 get gradients, but no optimizer has them"),
    ],
)
def test_mistakes_that_cost_time_or_samples_are_remarks(
    measured: Measured, mistake: str, remark: str
) -> None:
    verdict = measured("loop.py", "--mistake", mistake, protocol=WINDOW)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    assert remark in measured.table()


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "unchecked"),
    [
        (
            ("--accumulate", "4", "--mistake", "undivided"),
            "that the loss is divided by the number of accumulated passes",
        ),
        (("--mistake", "sum"), "gradient of 2cpu against one rank's (weak: different samples)"),
    ],
)
def test_unchecked_properties_are_listed(
    measured: Measured, words: tuple[str, ...], unchecked: str
) -> None:
    verdict = measured("loop.py", *words)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    not_checked = measured.table().partition(" not checked ")[2]
    assert unchecked in not_checked


@pytest.mark.full
def test_strong_scaling_with_a_mean_loss_raises_nothing(measured: Measured) -> None:
    """This is the twin of a summed loss, and of a strong-scaling script that is run as weak."""
    verdict = measured("loop.py", "--global-batch", "64", mode=Mode.STRONG)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
