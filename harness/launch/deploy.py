"""From an engine's name to fleets of agents on which worlds can be launched."""

import functools
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.base import programs
from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.cases import Entry
from harness.host import environment
from harness.launch.engine import Command, Deployment, Engine, Job, Where, make
from harness.launch.fleet import Fleet
from harness.launch.wire.channel import Channel, Listener, make_token, read_token


class Fleets:
    """``own`` are the run's agents; those of a setup start when it is first needed, and stay.

    ``setups`` maps names of environments to their interpreters.
    """

    def __init__(self, engine: Entry, where: Where, setups: Mapping[str, str]) -> None:
        self._engine = engine
        self._where = where
        self._setups = setups
        self.own = open_worlds(engine, where)
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

    def _started(self, name: str, python: str) -> Fleet:
        fleet = open_worlds(self._engine, setup(self._where, name, python))
        try:
            fleet.ready()
        except LaunchError as error:
            raise LaunchError(
                f"its agents do not start: {error.what}",
                where=f"setup {name} ({python})",
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


def open_worlds(entry: Entry, where: Where) -> Fleet:
    """Opens an engine's worlds; LaunchError with its reason if it cannot be used here."""
    engine = make(entry)
    if not (here := engine.probe()).available:
        raise LaunchError(
            f"engine {entry.name}: {here.reason}",
            expected="an engine that can be used here",
            fix="scaleproof check",
        )
    if isinstance(engine, Fleet):  # it starts whole worlds itself
        engine.configure(where.settings)
        return engine
    alone = not entry.engine.joins or hasattr(engine, "again")
    again = functools.partial(_again, entry, engine, where) if alone else None
    return Fleet(lambda: _begin(entry, engine, where), where, again)


def setup(where: Where, name: str, python: str) -> Where:
    """Returns the place with another environment's interpreter, for cases that name this setup.

    It is started with this package alone on its path: not with what is installed beside it here.
    """
    folder = (where.folder / "setups" / name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / "path" / programs.PACKAGE.name
    start = folder / "python"
    package.parent.mkdir(exist_ok=True)
    if not package.is_symlink():
        package.symlink_to(programs.PACKAGE)
    path = shlex.quote(f"PYTHONPATH={package.parent}")
    start.write_text(f'#!/bin/sh\nexec env {path} {shlex.quote(python)} "$@"\n', encoding="utf-8")
    start.chmod(0o755)
    return replace(where, folder=folder, settings={**where.settings, "python": str(start)})


def commands(entry: Entry, where: Where) -> tuple[Command, ...]:
    """The commands that would be run, with names in place of what only exists in a run
    (``--dry-run``).
    """
    named = {**vars(where), "folder": Path("FOLDER"), "token_file": Path("TOKEN_FILE")}
    deployment = Deployment(**named, join="HOST:PORT", python=python_of(where.settings))
    return make(entry).plan(deployment)


def _begin(entry: Entry, engine: Engine, where: Where) -> tuple[Job, Listener | None]:
    """Start an engine's job, and listen for its agents unless they inherit their sockets."""
    deployment, listener = _listening(entry, where)
    try:
        return engine.start(engine.plan(deployment), deployment), listener
    except BaseException:
        if listener is not None:
            listener.close()
        raise


def _again(
    entry: Entry, engine: Engine, where: Where, job: Job, node: int, host: str
) -> tuple[Channel | None, Listener | None]:
    """Start the agent of one node again: its channel, or a listener that it will dial."""
    if not entry.engine.joins:
        return job.renew(node, None, b""), None
    deployment, listener = _listening(entry, where)
    assert listener is not None
    try:
        command: Command = engine.again(deployment, node, host)  # type: ignore[attr-defined]
        job.renew(node, command, read_token(deployment.token_file))
    except BaseException:
        listener.close()
        raise
    return None, listener


def _listening(entry: Entry, where: Where) -> tuple[Deployment, Listener | None]:
    """Deployment that an engine is asked for, and the listener for its agents, if they dial in."""
    asked = where.settings
    listener = None
    join = ""
    token_file = where.folder / "token"
    if entry.engine.joins:
        given = asked.get("token_file")
        if given:
            token_file = Path(given)
        else:
            make_token(token_file)
        listener = Listener(token_file, port=asked.get("port", 0), forget=not given)
        host = str(asked.get("listen") or platform.node())
        join = f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
    deployment = Deployment(
        **{**vars(where), "folder": where.folder.absolute()},
        join=join,
        token_file=token_file.absolute(),
        python=python_of(where.settings),
    )
    return deployment, listener


def python_of(settings: Mapping[str, Json]) -> tuple[str, ...]:
    """The words that start Python on a node: one, or several as in ``apptainer exec IMAGE python``.

    This program's own if the cluster file names none.
    """
    asked = settings.get("python") or sys.executable
    return (asked,) if isinstance(asked, str) else tuple(asked)
