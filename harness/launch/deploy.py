"""From an engine's name to worlds that can be launched."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.base.errors import LaunchError
from harness.launch.engine import Command, Deployment, Ended, Engine, Job, Tick, Watch, Where, make
from harness.launch.fleet import Fleet
from harness.launch.wire.channel import Listener, make_token
from harness.launch.wire.messages import LaunchSpec, Node
from harness.record import Described
from harness.spec import CaseSpec, Entry


class Worlds(Protocol):
    """What launches worlds: a Fleet, or torchrun."""

    @property
    def queued_s(self) -> float:
        """Seconds that the agents' job waited for its turn."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The machines, once their agents are there."""

    def start(self) -> None:
        """Begin to get ready; returns at once."""

    def ready(self, watch: Watch = ...) -> None:
        """Wait until every agent is there, those in place of lost ones too."""

    def describe(self, requests: Sequence[tuple[CaseSpec, Mapping[str, str]]]) -> list[Described]:
        """Ask what each case will do; nothing is launched."""

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Start one world of fresh processes and wait until none of them is left."""

    def close(self) -> None:
        """Leave nothing behind."""


def open_worlds(entry: Entry, where: Where) -> Worlds:
    """The worlds of an engine; LaunchError with its reason if it cannot be used here."""
    engine = make(entry)
    if not (here := engine.probe()).available:
        raise LaunchError(
            f"engine {entry.name}: {here.reason}", expected="an engine that is here",
            fix="scaleproof doctor",
        )  # fmt: skip
    own = getattr(engine, "worlds", None)
    if own is not None:
        found: Worlds = own()
        return found
    return Fleet(lambda: _begin(entry, engine, where), where)


def commands(entry: Entry, where: Where) -> tuple[Command, ...]:
    """What would be run, with names in place of what only exists in a run (``--dry-run``)."""
    deployment = Deployment(
        nodes=where.nodes,
        device=where.device,
        join="HOST:PORT",
        token_file=Path("TOKEN_FILE"),
        folder=Path("FOLDER"),
        python=sys.executable,
        settings=where.settings,
    )
    return make(entry).plan(deployment)


def _begin(entry: Entry, engine: Engine, where: Where) -> tuple[Job, Listener | None]:
    """Start an engine's job, and listen for its agents unless they inherit their sockets."""
    asked = where.settings
    listener, join, token_file = None, "", where.folder / "token"
    if entry.engine.joins:
        given = asked.get("token_file")
        if given:
            token_file = Path(given)
        else:
            make_token(token_file)
        listener = Listener(token_file, port=asked.get("port", 0), forget=not given)
        join = f"{asked.get('listen') or platform.node()}:{listener.port}"
    deployment = Deployment(
        nodes=where.nodes,
        device=where.device,
        join=join,
        token_file=token_file.absolute(),
        folder=where.folder.absolute(),
        python=asked.get("python") or sys.executable,
        settings=asked,
    )
    try:
        return engine.start(engine.plan(deployment), deployment), listener
    except BaseException:
        if listener is not None:
            listener.close()
        raise
