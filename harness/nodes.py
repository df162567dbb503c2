"""``join`` makes this machine a node of a run; ``--dry-run`` says what would start its nodes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from typing import NoReturn

from harness.codec import Json, to_doc
from harness.discover import Entry
from harness.launch import deploy
from harness.launch.engine import RANK_ENV, Where
from harness.site import Site


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
    os.execv(sys.executable, [sys.executable, "-m", "harness.worker.agent", *rest])


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
