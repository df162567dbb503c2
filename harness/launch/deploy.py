"""From an engine's name to worlds that can be launched."""

import functools
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.base import programs
from harness.base.documents import Json
from harness.base.errors import LaunchError
from harness.cases import Entry
from harness.launch.engine import Command, Deployment, Engine, Job, Where, make
from harness.launch.fleet import Fleet
from harness.launch.wire.channel import Channel, Listener, make_token, read_token


def open_worlds(entry: Entry, where: Where) -> Fleet:
    """Opens an engine's worlds; LaunchError with its reason if it cannot be used here."""
    engine = make(entry)
    if not (here := engine.probe()).available:
        raise LaunchError(
            f"engine {entry.name}: {here.reason}",
            expected="an engine that can be used here",
            fix="scaleproof doctor",
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
