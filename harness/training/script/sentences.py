"""Divide a training into update cycles. This module does not import torch.

An update cycle (``sentence`` or ``word`` in names) is all that a training does from one update of
its weights to the next. Forward and backward passes come first, and then one or several optimizers
step. The cycle ends when the next pass begins. Steps inside a backward pass, and several steps
without a pass between them, belong to one cycle. A step of the training consists of one or more
cycles. It is the shortest sequence of cycles that repeats.
"""

from dataclasses import dataclass

from harness.analysis.script.period import period


@dataclass(frozen=True)
class Word:
    """One update cycle: its number of backward passes, and the optimizers that stepped."""

    backwards: int
    optimizers: frozenset[int]


class StepSequence:
    """The sequence of update cycles, built from every pass and every optimizer step in order."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.begun = False
        # the number of backward passes in the current cycle, and of those that are running now
        self.backwards = self._depth = 0
        self._stepped: set[int] = set()
        self.twice = 0  # number of steps of an optimizer that had already stepped in the cycle
        self.alone = False  # whether an optimizer has stepped before the first pass

    def passing(self) -> bool:
        """Handle the start of a pass, and return whether a new update cycle begins with it."""
        if self._depth:
            return False  # activation checkpointing repeats forward passes inside a backward pass
        if self.begun and not self._stepped:
            return False
        if self.begun:
            self.words.append(Word(self.backwards, frozenset(self._stepped)))
        self.begun = True
        self.backwards = 0
        self._stepped = set()
        return True

    @property
    def done(self) -> int:
        """Return the number of cycles that updated weights, including the current one."""
        return len(self.words) + bool(self._stepped)

    @property
    def in_backward(self) -> bool:
        """Return whether a backward pass is running."""
        return self._depth > 0

    @property
    def accumulates(self) -> bool:
        """Return whether a backward pass that begins now is not the first one of its update."""
        return bool(self.backwards) and not self._depth and not self._stepped

    def enter_backward(self, *, again: bool = False) -> None:
        """Handle the start of a backward pass.

        ``again`` is True if an optimizer has called its closure once more. Such passes are not
        counted, because their number varies.
        """
        self.backwards += self._depth == 0 and not again
        self._depth += 1

    def leave_backward(self) -> None:
        self._depth -= 1

    def stepped(self, optimizer: int) -> None:
        self.alone |= not self.begun
        self.twice += optimizer in self._stepped
        self._stepped.add(optimizer)

    def period(self, known: int) -> int | None:
        """Return the number of update cycles in one step of the training.

        The period is found from the optimizers that step in each cycle. Numbers of backward passes
        are ignored, because the first update, or the last update of an epoch, may have fewer.

        The result is None if there is no period yet, or if one of the ``known`` optimizers has not
        stepped.
        """
        stepping = [word.optimizers for word in self.words]
        return period(stepping) if len(frozenset().union(*stepping)) == known else None
