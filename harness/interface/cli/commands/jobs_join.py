"""``join``: be a node of a run that waits for its nodes."""

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


#: It becomes an agent and answers nothing.
ANSWERS: Mapping[str, tuple[Any, ...]] = {}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Where the run waits, and its secret."""
    sub.add_argument("address", metavar="HOST:PORT", help="the address at which the run waits")
    sub.add_argument("--token-file", required=True, metavar="FILE", help="run's token, mode 600")
    sub.add_argument("--order", type=int, metavar="N", help="this node's number, from 0 on")
    sub.add_argument("--own-address", metavar="IP", help="this node's address for other nodes")


def act(asked: Asked) -> NoReturn:
    """Become this node's agent, until the run is over."""
    parsed = asked.options
    rest = ["--join", parsed.address, "--token-file", parsed.token_file]
    rest += [f"--order={parsed.order}"] if parsed.order is not None else []
    rest += [f"--address={parsed.own_address}"] if parsed.own_address else []
    os.environ.update(RANK_ENV)
    os.execv(sys.executable, [sys.executable, *programs.MODULE, programs.AGENT, *rest])
