"""``measured``: for those who can change a line, which part of a script is the training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Restarted(Protocol):
    def restart(self) -> None:
        """Forget what was seen so far."""


_watches: list[Restarted] = []


def watched_by(watch: Restarted) -> None:
    """The watch of this process."""
    _watches.append(watch)


@contextmanager
def measured() -> Iterator[None]:
    """Steps count from here on; without scaleproof around it does nothing.

    A script needs it where something that is not the training comes first and trains, too.
    """
    for watch in _watches:
        watch.restart()
    yield
