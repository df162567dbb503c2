"""``demo``: a ladder of a small training on this machine, in a minute, with a page at its end."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from harness.host import vendor
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.commands import run
from harness.record import RunRecord

HELP = {
    "run demo": "measure a small training run on this machine in a minute",
}
EXAMPLES = {
    "run demo": (
        "run demo",
        "run demo --results out",
    ),
}
#: Verbs that draw nothing from a record, and why.
UNVOUCHED = {
    "run demo": "it reports what it has just measured itself",
}
#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run demo": (RunRecord,),
}

CASE = "ddp/decoder-nano/weak"
BUDGET_S = 40
#: More ranks than these take longer to start than a demonstration should.
MOST_RANKS = 4


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("--results", metavar="DIR", help="where it is written (default: results)")


def act(asked: Asked) -> Answer:
    """The run that anybody could have typed: its last lines say how."""
    words = ["run", CASE, *_ranks(), "--time-budget", str(BUDGET_S)]
    words += ["--results", asked.options.results] if asked.options.results else []
    parser = argparse.ArgumentParser()
    run.add_to(parser, "run")
    return run.act(Asked(command="run", options=parser.parse_args(words[1:]), words=words))


def _ranks() -> list[str]:
    """GPUs, where there are several: one has nothing to be compared with."""
    num_gpus = len(vendor.gpus())
    if num_gpus > 1:
        return ["--gpus", str(min(num_gpus, MOST_RANKS))]
    return ["--cpus", str(max(2, min(len(os.sched_getaffinity(0)), MOST_RANKS)))]
