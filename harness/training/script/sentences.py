"""Sentences: what a training does from one update of its weights to the next. No torch.

Forward and backward passes come, then one or several optimizers step; the sentence ends as the next
pass begins. Steps inside of a backward pass, and several without a pass between them, are of one
sentence. A step of the training is one or more sentences: their smallest repeating period.
"""

from dataclasses import dataclass

from harness.analysis.samples.script import period


@dataclass(frozen=True)
class Word:
    """One sentence: how many backward passes it had, and which optimizers stepped."""

    backwards: int
    optimizers: frozenset[int]


class StepSequence:
    """Told of every pass and every optimizer step, in their order."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.begun = False
        self.backwards = self._depth = 0  # of the sentence that has begun
        self._stepped: set[int] = set()
        self.twice = 0  # optimizer steps without a backward pass since the same one's last
        self.alone = False  # whether an optimizer has stepped before there was any pass

    def passing(self) -> bool:
        """A pass begins: whether a new sentence begins with it."""
        if self._depth:
            return False  # forward passes are repeated inside of a backward pass to save memory
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
        """Sentences in which weights were updated, with the one that is not over yet."""
        return len(self.words) + bool(self._stepped)

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is under way."""
        return self._depth > 0

    @property
    def accumulates(self) -> bool:
        """Whether a backward pass that begins now is not the first one of this update."""
        return bool(self.backwards) and not self._depth and not self._stepped

    def enter_backward(self, *, again: bool = False) -> None:
        """``again``: an optimizer asks its closure once more, as often as it likes."""
        self.backwards += self._depth == 0 and not again
        self._depth += 1

    def leave_backward(self) -> None:
        self._depth -= 1

    def stepped(self, optimizer: int) -> None:
        self.alone |= not self.begun
        self.twice += optimizer in self._stepped
        self._stepped.add(optimizer)

    def period(self, known: int) -> int | None:
        """Sentences of one step of the training, by which optimizers step: of backward passes the
        last update of an epoch may have fewer, and a first one fewer than later ones.

        None while there is no period yet, or one of the ``known`` optimizers has not stepped.
        """
        stepping = [word.optimizers for word in self.words]
        return period(stepping) if len(frozenset().union(*stepping)) == known else None
