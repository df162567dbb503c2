"""The command ``run demo``: a scaling sweep of a small model on this machine, in a minute."""

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
#: Commands that need not verify a record, and why.
UNVOUCHED = {
    "run demo": "it reports a run that it has just measured",
}
#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run demo": (RunRecord,),
}

CASE = "ddp/decoder-nano/weak"
BUDGET_S = 40
#: Largest number of ranks; more of them would take too long to start for a demonstration.
MOST_RANKS = 4


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument(
        "--results", metavar="DIR", help="folder that the run is written to (default: results)"
    )


def act(asked: Asked) -> Answer:
    """Run an ordinary ``scaleproof run``; its last lines show the command."""
    words = ["run", CASE, *_ranks(), "--time-budget", str(BUDGET_S)]
    words += ["--results", asked.options.results] if asked.options.results else []
    parser = argparse.ArgumentParser()
    run.add_to(parser, "run")
    return run.act(Asked(command="run", options=parser.parse_args(words[1:]), words=words))


def _ranks() -> list[str]:
    """Return the option for the ranks: GPUs if there are several, else CPUs.

    A single GPU has nothing to be compared with.
    """
    num_gpus = len(vendor.gpus())
    if num_gpus > 1:
        return ["--gpus", str(min(num_gpus, MOST_RANKS))]
    return ["--cpus", str(max(2, min(len(os.sched_getaffinity(0)), MOST_RANKS)))]
