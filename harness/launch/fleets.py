"""Fleets: the run's own agents, and those of every other environment that a case names."""

from collections.abc import Mapping

from harness.base.errors import SpecError
from harness.launch import deploy
from harness.launch.engine import Where
from harness.launch.fleet import Fleet
from harness.spec import Entry


class Fleets:
    """``own`` are the run's agents; those of a setup start when it is first needed, and stay.

    ``setups`` maps names of environments to their interpreters.
    """

    def __init__(self, engine: Entry, where: Where, setups: Mapping[str, str]) -> None:
        self._engine, self._where, self._setups = engine, where, setups
        self.own = deploy.open_worlds(engine, where)
        self._others: dict[str, Fleet] = {}

    def of(self, setup: str) -> Fleet:
        """The agents of a setup, the run's own for "". SpecError for one that nobody named."""
        if not setup:
            return self.own
        if setup not in self._others:
            if setup not in self._setups:
                raise SpecError(
                    f"no setup {setup!r}", expected=", ".join(self._setups) or "--control PYTHON",
                    fix="scaleproof run --help",
                )  # fmt: skip
            where = deploy.setup(self._where, setup, self._setups[setup])
            self._others[setup] = deploy.open_worlds(self._engine, where)
        return self._others[setup]

    def software(self) -> dict[str, dict[str, str]]:
        """What each setup that was needed runs with, by its first node."""
        return {name: dict(fleet.nodes[0].software) for name, fleet in self._others.items()}

    def close(self) -> None:
        """Stop all agents."""
        for fleet in (self.own, *self._others.values()):
            fleet.close()
