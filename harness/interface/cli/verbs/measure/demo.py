"""``demo``: a ladder of a small training on this machine, in a minute, with a page at its end."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from harness.host import vendor
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.verbs.measure import run
from harness.record import RunRecord

HELP = dict(demo="measure a small training here, in a minute, and write its page")
EXAMPLES = dict(demo=("demo", "demo --results out"))
#: Verbs that draw nothing from a record, and why.
UNVOUCHED = dict(demo="it reports what it has just measured itself")
#: What each verb prints with ``--json``: a document, or one for each way of asking.
ANSWERS: Mapping[str, tuple[Any, ...]] = {"demo": (RunRecord,)}

CASE = "ddp/decoder-nano/weak"
BUDGET_S = 40
#: More ranks than these take longer to start than a demonstration should.
MOST_RANKS = 4


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("--results", metavar="DIR", help="where it is written (default: results)")


def act(asked: Asked) -> Answer:
    """The run that anybody could have typed: its last lines say how."""
    words = ["run", CASE, *_ranks(), "--time-budget", str(BUDGET_S)]
    words += ["--results", asked.options.results] if asked.options.results else []
    parser = argparse.ArgumentParser()
    run.add_to(parser, "run")
    return run.act(Asked(verb="run", options=parser.parse_args(words[1:]), words=words))


def _ranks() -> list[str]:
    """GPUs, where there are several: one has nothing to be compared with."""
    num_gpus = len(vendor.gpus())
    if num_gpus > 1:
        return ["--gpus", str(min(num_gpus, MOST_RANKS))]
    return ["--cpus", str(max(2, min(len(os.sched_getaffinity(0)), MOST_RANKS)))]
