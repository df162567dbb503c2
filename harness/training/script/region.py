"""Mark the part of a script to measure, if the user's code states where the training begins."""

from typing import Protocol


class Restarted(Protocol):
    def restart(self) -> None:
        """Forget all observations so far."""


class Region:
    """The region to measure.

    ``awaited`` is True after ``measured`` was imported and until it is entered.
    """

    def __init__(self) -> None:
        self.watches: list[Restarted] = []
        self.awaited = False

    def enter(self) -> None:
        self.awaited = False
        for watch in self.watches:
            watch.restart()


region = Region()
