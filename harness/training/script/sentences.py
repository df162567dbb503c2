"""Divide a training into update cycles, which names in the code call sentences. Without torch.

An update cycle is all that a training does from one update of its weights to the next. Forward and
backward passes come first, then one or several optimizers step; the cycle ends when the next pass
begins. Steps inside a backward pass, and several steps without a pass between them, belong to one
cycle. A step of the training is one or more cycles: their smallest repeating period.
"""

from dataclasses import dataclass

from harness.analysis.samples.script import period


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
        self.backwards = self._depth = 0  # of the current cycle
        self._stepped: set[int] = set()
        self.twice = 0  # steps of an optimizer without a backward pass since its last step
        self.alone = False  # whether an optimizer has stepped before any pass

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

        ``again``: an optimizer calls its closure once more. These passes are not counted, because
        their number varies.
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

        The period is that of the optimizers that step. Numbers of backward passes are ignored: the
        last update of an epoch may have fewer, and the first update fewer than later ones.

        None if there is no period yet, or if one of the ``known`` optimizers has not stepped.
        """
        stepping = [word.optimizers for word in self.words]
        return period(stepping) if len(frozenset().union(*stepping)) == known else None
