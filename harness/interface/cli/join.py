"""Nodes: ``join`` makes this machine one; what would start others, and which engines are here."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from typing import NoReturn

from harness.base import programs
from harness.base.documents import Json, to_doc
from harness.host.admission import Finding, Level
from harness.launch import deploy
from harness.launch.engine import RANK_ENV, Where, make
from harness.spec.catalogue import Entry
from harness.spec.site import Site


def add_to(sub: argparse.ArgumentParser) -> None:
    """The options of ``join``."""
    sub.add_argument("address", metavar="HOST:PORT", help="where the run waits")
    sub.add_argument("--token-file", required=True, metavar="FILE", help="its secret, mode 600")
    sub.add_argument("--order", type=int, metavar="N", help="this node's place, from 0 on")
    sub.add_argument("--own-address", metavar="IP", help="where other nodes reach this one")


def join(parsed: argparse.Namespace) -> NoReturn:
    """Become this node's agent, until the run is over."""
    rest = ["--join", parsed.address, "--token-file", parsed.token_file]
    rest += [f"--order={parsed.order}"] if parsed.order is not None else []
    rest += [f"--address={parsed.own_address}"] if parsed.own_address else []
    os.environ.update(RANK_ENV)
    os.execv(sys.executable, [sys.executable, "-m", programs.AGENT, *rest])


def engines(known: Mapping[str, Entry]) -> list[Finding]:
    """Which engines can be used from here, and what the others lack."""
    found = []
    for name, entry in known.items():
        here = make(entry).probe()
        text = f"here {here.version}".strip() if here.available else f"not here: {here.reason}"
        found.append(Finding(check=f"engine {name}", level=Level.OK, text=text))
    return found


def dry_run(entry: Entry, site: Site, settings: Mapping[str, Json]) -> tuple[Json, list[str]]:
    """What an engine would run to start its agents, its files first; nothing is started."""
    where = Where(nodes=site.nodes, device=site.device, settings=settings)
    found = deploy.commands(entry, where)
    lines = []
    for command in found:
        for name, content in command.files.items():
            lines += [f"# {name}", *content.splitlines(), ""]
        lines.append(shlex.join(command.argv))
    return [to_doc(c) for c in found], lines
