"""Start fleets of agents with the chosen engine, so that worlds can be launched on them."""

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
    """The fleets of one run: one for the main environment, and one for each setup in use.

    A setup is another Python environment in which some cases run. ``setups`` maps the name of each
    setup to its interpreter. ``own`` is the fleet of the main environment. The fleet of a setup
    starts when a case first needs it, and runs until ``close``.
    """

    def __init__(self, engine: Entry, where: Where, setups: Mapping[str, str]) -> None:
        self._engine = engine
        self._where = where
        self._setups = setups
        self.own = open_worlds(engine, where)
        self._others: dict[str, Fleet] = {}

    def of(self, setup: str) -> Fleet:
        """Return the fleet of a setup, or the main fleet for an empty name.

        Raise SpecError if no setup has this name.
        """
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
        """Start the fleet of a setup; raise LaunchError if its agents do not start."""
        fleet = open_worlds(self._engine, setup(self._where, name, python))
        try:
            fleet.ready()
        except LaunchError as error:
            raise LaunchError(
                f"its agents do not start: {error.what}",
                where=f"setup {name} ({python})",
                expected="an environment with torch and the dependencies of scaleproof",
                fix=f"{python} -m pip install torch scaleproof",
            ) from None
        return fleet

    def software(self) -> dict[str, dict[str, str]]:
        """Return the software versions of each setup in use, as reported by its first node."""
        return {name: dict(fleet.nodes[0].software) for name, fleet in self._others.items()}

    def mended(self) -> list[str]:
        """Return sentences about agents that were lost and replaced since the previous call."""
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
        """Notes for the record: the time in a queue, and variables that may affect results."""
        queued_s = self.own.queued_s
        variables = environment.of_backends()
        sentences = [f"engine: {queued_s:.0f} s in the queue"] if queued_s >= 1 else []
        for number, node in enumerate(self.own.nodes):
            for name, value in node.environment.items():
                if name not in variables and not environment.names_interface(name):
                    sentences.append(
                        f"node {number} ({node.machine.host}) also sets {name}={value}:"
                        " the value affects the results but is not part of the case"
                    )
        return sentences


def usable(entry: Entry) -> Engine:
    """Return an engine. Raise SpecError with its reason if it cannot be used on this machine."""
    engine = make(entry)
    if not (here := engine.probe()).available:
        raise SpecError(
            f"engine {entry.name}: {here.reason}",
            expected="an engine that can be used on this machine",
            fix="scaleproof check",
        )
    return engine


def open_worlds(entry: Entry, where: Where) -> Fleet:
    """Return the fleet of an engine, not yet started.

    Raise SpecError if the engine cannot be used on this machine.
    """
    engine = usable(entry)
    if isinstance(engine, Fleet):  # this engine starts whole worlds itself
        engine.configure(where.settings)
        return engine
    alone = not entry.engine.joins or hasattr(engine, "again")
    again = functools.partial(_again, entry, engine, where) if alone else None
    return Fleet(lambda: _begin(entry, engine, where), where, again)


def setup(where: Where, name: str, python: str) -> Where:
    """Return ``where`` with the interpreter of another environment, for cases with this setup.

    A start script puts only this package on the path of that interpreter. The other packages of
    the current environment must not hide packages of that interpreter's environment.
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
    """Return the commands that a run would execute (``--dry-run``).

    Placeholders (``FOLDER``, ``TOKEN_FILE``, ``HOST:PORT``) replace values that exist only during
    a run.
    """
    named = {**vars(where), "folder": Path("FOLDER"), "token_file": Path("TOKEN_FILE")}
    deployment = Deployment(**named, join="HOST:PORT", python=python_of(where.settings))
    return make(entry).plan(deployment)


def _begin(entry: Entry, engine: Engine, where: Where) -> tuple[Job, Listener | None]:
    """Start an engine's job, and return it with the listener for its agents.

    The listener is None if the agents inherit their sockets.
    """
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
    """Start the agent of one node again, and return its channel or a listener for it.

    An agent that inherits its socket gives a channel; any other agent connects to the listener.
    """
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
    """Return the request to an engine, and the listener for its agents if they connect to one.

    Without a ``token_file`` in the settings, a token is created that lives as long as the listener.
    """
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
    """Return the words of the command that starts Python on a node.

    It may have several words, for example ``apptainer exec IMAGE python``. If the cluster file sets
    no ``python``, the interpreter of this program is used.
    """
    asked = settings.get("python") or sys.executable
    return (asked,) if isinstance(asked, str) else tuple(asked)
