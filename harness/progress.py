"""What a run tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.record import Purpose


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run is, for whoever draws it."""

    plan: str
    arm: str
    purpose: Purpose
    launch: int
    num_launches: int
    step: int
    num_steps: int
    elapsed_s: float
    left_s: float | None
    last: str


class Progress(Protocol):
    """Whoever shows the run while it goes on."""

    def show(self, moment: Moment) -> None:
        """Called several times a second."""

    def note(self, text: str) -> None:
        """One line worth keeping."""

    def clear(self) -> None:
        """Leave the screen as it was."""


class Quiet:
    """Shows nothing: for programs that print what they want themselves."""

    def show(self, moment: Moment) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""
