"""The command ``network pairs``: find slow nodes and links by measuring pairs of nodes."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases.targets import case_of
from harness.features.nodes import pairing, report
from harness.features.nodes.pairing import Pairer
from harness.features.nodes.rounds import MOST_ROUNDS
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record.fabric import Suspects

HELP = {
    "network pairs": "find slow nodes and links by measuring pairs of nodes",
}
EXAMPLES = {
    "network pairs": (
        "network pairs --engine slurm --nodes 64x8 --gpus 512 --case ddp/decoder-small",
        "network pairs --engine emulated --nodes 3x1",
    ),
}

#: The document that the command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "network pairs": (Suspects,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    measuring.add_measuring_options(sub, "records")
    sub.add_argument(
        "--case", default="", help="the case that pairs train (default: they all-reduce)"
    )
    sub.add_argument(
        "--rounds",
        type=measuring.positive,
        default=MOST_ROUNDS,
        metavar="N",
        help=f"largest number of rounds; after the first two, only nodes and links that may be slow"
        f" are measured (default: {MOST_ROUNDS})",
    )
    sub.add_argument(
        "--exclude", type=Path, metavar="FILE", help="write the slow nodes to this file"
    )


def act(asked: Asked) -> Answer:
    """Measure pairs of nodes in rounds, and return the slow nodes and links."""
    catalogue, site = measuring.site(asked)
    if len(site.nodes) < 3:
        raise SpecError(
            f"{len(site.nodes)} nodes cannot show whether a node or a link is slow",
            expected="at least 3 nodes",
            fix="--nodes 4",
        )
    knobs = measuring.settings(asked)
    case = asked.options.case
    two = (min(site.nodes),) * 2
    if case:
        case = catalogue.normalise(case_of(case, site, knobs).at(sum(two), two))
    else:
        knobs = catalogue.checked([catalogue.get("engines", site.engine)], knobs, asked.command)
    with measuring.session(asked, catalogue, site) as session:
        pairer = Pairer(session, site, asked.options.rounds)
        suspects = pairer.train(case) if case else pairer.reduce(knobs)
        session.save(complete=True)
    lines = report.of_pairs(suspects, text.columns())
    if (exclude := asked.options.exclude) is not None:
        files.put(exclude, "".join(f"{host}\n" for host in suspects.nodes).encode(), "--exclude")
        lines.append(f" {len(suspects.nodes)} slow nodes written to {exclude}")
    lines.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    exit_ = Exit.INCONCLUSIVE if suspects.undecided else Exit.PASSED
    exit_ = Exit.FAILED if suspects.slow else exit_
    if unseen := pairing.unseen(suspects):
        lines.insert(-1, f" ERROR  no launch succeeded on {', '.join(unseen)}")
        exit_ = Exit.ERROR
    return Answer(document=to_doc(suspects), lines=lines, exit=exit_)
