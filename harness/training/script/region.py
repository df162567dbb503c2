"""Mark the part of a script that is the training, if the user's code says where it begins."""

from typing import Protocol


class Restarted(Protocol):
    def restart(self) -> None:
        """Forget what was seen so far."""


class Region:
    """The region to measure. ``awaited`` is true from the import of ``measured`` until it is
    entered.
    """

    def __init__(self) -> None:
        self.watches: list[Restarted] = []
        self.awaited = False

    def enter(self) -> None:
        self.awaited = False
        for watch in self.watches:
            watch.restart()


region = Region()
