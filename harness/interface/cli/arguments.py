"""The command line of ``scaleproof``: its verbs, and what each takes."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import NoReturn

from harness.analysis import compare
from harness.base.errors import Exit
from harness.interface import options
from harness.interface.cli import baseline, detached, fabric, join, timeline
from harness.spec import Ablation
from harness.spec.catalogue import KINDS

SAYS = "Prove or disprove that distributed training scales on this hardware, and say why."


class Parser(argparse.ArgumentParser):
    """argparse with this program's exit status and a suggestion for a mistyped verb."""

    def error(self, message: str) -> NoReturn:
        """One clear message, status 4."""
        if "invalid choice" in message:
            wrong = message.split("'")[1]
            verbs = re.findall(r"[\w-]+", message.partition("choose from")[2])
            near = difflib.get_close_matches(wrong, verbs, 1)
            if near and "argument VERB" in message:
                message = f"no verb {wrong!r}: did you mean {near[0]!r}?"
        sys.stderr.write(f"ERROR: {message}\n  try       {self.prog} --help\n")
        raise SystemExit(int(Exit.USAGE))


def arguments_of(words: list[str]) -> argparse.Namespace:
    """The verb and its options; leaves with status 4 for what is none."""
    parser = Parser(prog="scaleproof", description=SAYS, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help_: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        sub.add_argument("--json", action="store_true", help="print one JSON document on stdout")
        return sub

    verb("doctor", "check what on this machine would spoil a measurement; changes nothing")
    sub = verb("list", "strategies, models, compressors, engines and suites")
    sub.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")
    sub.add_argument(
        "--path", action="append", default=[], metavar="DIR", help="folder with your own files"
    )
    sub = verb("plan", "what would be launched, how long it takes, memory and bytes per rank")
    sub.add_argument(
        "target",
        nargs="?",
        default="suites",
        help="a case, a suite folder, file.py or file.py::recipe",
    )
    _where(sub)
    sub = verb("run", "measure and judge a case or a recipe")
    sub.add_argument(
        "target", nargs="?", help="a case (ddp/decoder-tiny/weak), file.py or file.py::recipe"
    )
    sub.add_argument("--resume", metavar="RUN", help="go on with an interrupted run")
    sub.add_argument("--inconclusive", choices=("fail", "warn"), default="fail")
    sub.add_argument("--detach", action="store_true", help="leave it to Slurm's queue")
    sub.add_argument("--dry-run", action="store_true", help="print what would start the agents")
    sub.add_argument("--nsys", action="store_true", help="run it all under Nsight Systems")
    _where(sub)
    detached.add_to(
        verb("status", "runs in Slurm's queue (run --detach)"),
        verb("cancel", "end such a run; what it measured is kept"),
        verb("collect", "the tables of such a run, once it is over"),
    )
    fabric.add_to(
        verb("fabric", "how fast ranks exchange data: every collective, checked, timed and judged"),
        verb("pairs", "which node or link is slower than the others: pairs of nodes in rounds"),
        verb("recover", "break a training on purpose and time how it goes on from its checkpoint"),
    )
    join.add_to(verb("join", "be a node of a run that waits for its nodes (--engine hosts)"))
    sub = verb("report", "the tables of a run, and its HTML page")
    sub.add_argument("run", type=Path)
    sub.add_argument("--every", action="store_true", help="a line for every verdict")
    sub = verb("verify", "recompute every figure and verdict from the stored samples, offline")
    sub.add_argument("run", type=Path)
    sub.add_argument(
        "--thresholds", type=Path, metavar="FILE", help="also judge it anew by these rules"
    )
    timeline.add_to(verb("timeline", "where the time of a step went, from any profiler's traces"))
    baseline.add_to(verb("baseline", "expected values of a hardware class: show, set, accept"))
    for name, help_ in (
        ("compare", "two runs on one hardware class"),
        ("compare-hardware", "two machines on the cases that both ran"),
    ):
        sub = verb(name, help_)
        sub.add_argument("a", type=Path)
        sub.add_argument("b", type=Path)
        usual = "median_step_s" if name == "compare" else "throughput"
        sub.add_argument("--metric", default=usual, choices=tuple(compare.METRICS))
        if name == "compare":
            sub.add_argument("--force", action="store_true", help="compare unlike runs, marked")
    sub = verb("ingest", "add runs to the asv history")
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    return parser.parse_args(words)


def _where(sub: argparse.ArgumentParser) -> None:
    options.add_to(sub)
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field or knob of the case",
    )
    sub.add_argument(
        "--ablate",
        action="append",
        default=[],
        choices=tuple(Ablation),
        help="also measure the largest rung without this: what it saves is what it costs",
    )
