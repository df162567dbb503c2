"""Which part of a script is the training, where its user says so."""

from typing import Protocol


class Restarted(Protocol):
    def restart(self) -> None:
        """Forget what was seen so far."""


class Region:
    """``awaited`` from when the script imports ``measured`` until it enters it."""

    def __init__(self) -> None:
        self.watches: list[Restarted] = []
        self.awaited = False

    def enter(self) -> None:
        self.awaited = False
        for watch in self.watches:
            watch.restart()


region = Region()
