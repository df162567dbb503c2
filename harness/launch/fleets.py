"""Fleets: the run's own agents, and those of every other environment that a case names."""

from collections.abc import Mapping

from harness.base.errors import LaunchError, SpecError
from harness.cases import Entry
from harness.host import environment
from harness.launch import deploy
from harness.launch.engine import Where
from harness.launch.fleet import Fleet


class Fleets:
    """``own`` are the run's agents; those of a setup start when it is first needed, and stay.

    ``setups`` maps names of environments to their interpreters.
    """

    def __init__(self, engine: Entry, where: Where, setups: Mapping[str, str]) -> None:
        self._engine = engine
        self._where = where
        self._setups = setups
        self.own = deploy.open_worlds(engine, where)
        self._others: dict[str, Fleet] = {}

    def of(self, setup: str) -> Fleet:
        """The agents of a setup, the run's own for "". SpecError for one that nobody named."""
        if not setup:
            return self.own
        if setup not in self._others:
            if setup not in self._setups:
                raise SpecError(
                    f"no setup {setup!r}",
                    expected=", ".join(self._setups) or "--control PYTHON",
                    fix="scaleproof run --help",
                )
            self._others[setup] = self._started(setup, self._setups[setup])
        return self._others[setup]

    def _started(self, setup: str, python: str) -> Fleet:
        fleet = deploy.open_worlds(self._engine, deploy.setup(self._where, setup, python))
        try:
            fleet.ready()
        except LaunchError as error:
            raise LaunchError(
                f"its agents do not start: {error.what}",
                where=f"setup {setup} ({python})",
                expected="an environment with torch and what scaleproof needs",
                fix=f"{python} -m pip install torch scaleproof",
            ) from None
        return fleet

    def software(self) -> dict[str, dict[str, str]]:
        """The software of each setup that was needed, by its first node."""
        return {name: dict(fleet.nodes[0].software) for name, fleet in self._others.items()}

    def mended(self) -> list[str]:
        """The agents that were lost and replaced since this was asked for last."""
        sentences = []
        for fleet in (self.own, *self._others.values()):
            sentences += fleet.notes
            fleet.notes.clear()
        return sentences

    def close(self) -> None:
        """Stop all agents."""
        for fleet in (self.own, *self._others.values()):
            fleet.close()

    @property
    def notes(self) -> list[str]:
        """The engine's remarks for the record."""
        queued_s = self.own.queued_s
        variables = environment.of_backends()
        sentences = [f"engine: {queued_s:.0f} s in the queue"] if queued_s >= 1 else []
        for number, node in enumerate(self.own.nodes):
            for name, value in node.environment.items():
                if name not in variables and not environment.names_interface(name):
                    sentences.append(
                        f"node {number} ({node.machine.host}) also sets {name}={value}:"
                        " the value affects the results but is no part of the case"
                    )
        return sentences
