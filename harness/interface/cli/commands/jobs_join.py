"""The command ``jobs join``: make this machine a node of a run that waits for its nodes."""

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from harness.base import programs
from harness.interface.cli.answer import Asked
from harness.launch.engine import RANK_ENV

HELP = {
    "jobs join": "add this machine as a node to a waiting run (--engine hosts)",
}
EXAMPLES = {
    "jobs join": (
        "jobs join node0:29500 --token-file token",
        "jobs join node0:29500 --token-file token --order 3",
    ),
}


#: The command prints no document, because its process becomes an agent.
ANSWERS: Mapping[str, tuple[Any, ...]] = {}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the address of the run and its token."""
    sub.add_argument("address", metavar="HOST:PORT", help="the address at which the run waits")
    sub.add_argument(
        "--token-file", required=True, metavar="FILE", help="file with the run's token, mode 600"
    )
    sub.add_argument("--order", type=int, metavar="N", help="this node's number, starting at 0")
    sub.add_argument("--own-address", metavar="IP", help="this node's address for other nodes")


def act(asked: Asked) -> NoReturn:
    """Replace this process by the node's agent, which ends with the run."""
    parsed = asked.options
    rest = ["--join", parsed.address, "--token-file", parsed.token_file]
    rest += [f"--order={parsed.order}"] if parsed.order is not None else []
    rest += [f"--address={parsed.own_address}"] if parsed.own_address else []
    os.environ.update(RANK_ENV)
    os.execv(sys.executable, [sys.executable, *programs.MODULE, programs.AGENT, *rest])
