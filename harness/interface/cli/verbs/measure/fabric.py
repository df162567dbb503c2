"""``fabric`` and ``pairs``: how fast ranks exchange data, and which node or link is slower."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.analysis.slow_nodes import told
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases import Site
from harness.cases.targets import case_of
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import fabric, text
from harness.measure.confirming import USUAL
from harness.measure.hardware.pairing import Pairer
from harness.measure.hardware.sweeper import Sweeper
from harness.record import RunRecord
from harness.record.fabric import Suspects

#: Rounds that name a node that is 2 % slower among 1,024.
ROUNDS = 6
HELP = dict(
    fabric="check, time and judge every collective between the ranks",
    pairs="find the node or link that is slower than the others, by pairs of nodes",
)
EXAMPLES = dict(
    fabric=(
        "fabric --gpus 8",
        "fabric --cpus 2 --sweeps 2",
    ),
    pairs=(
        "pairs --engine slurm --nodes 64x8 --gpus 512 --case ddp/decoder-small",
        "pairs --engine emulated --nodes 3x1",
    ),
)


#: What each verb prints with ``--json``: a document, or one for each way of asking.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "fabric": (RunRecord,),
    "pairs": (Suspects,),
}


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    measuring.add_to(sub, cases=False)
    if verb == "pairs":
        sub.add_argument("--case", default="", help="what pairs train (default: they all-reduce)")
        sub.add_argument(
            "--rounds", type=measuring.positive, default=ROUNDS, metavar="N",
            help=f"rounds at most (default: {ROUNDS}; after two, suspects only)",
        )  # fmt: skip
        sub.add_argument(
            "--exclude", type=Path, metavar="FILE", help="write the slow nodes to this file"
        )
        return
    sub.add_argument(
        "--sweeps", type=measuring.positive, default=USUAL, metavar="N",
        help=f"sweeps to run (default: {USUAL})",
    )  # fmt: skip


def act(asked: Asked) -> Answer:
    """Sweep every world of the site and judge it; a FAIL is measured again before it counts."""
    if asked.verb == "pairs":
        return _pairs(asked)
    known, site = measuring.site(asked)
    needs_two(site)
    knobs = known.checked(
        [known.get("engines", site.engine)], measuring.settings(asked), asked.verb
    )
    with measuring.session(asked, known, site) as session:
        Sweeper(session).measure(site, knobs, asked.options.sweeps)
    return measuring.judged(session, session.save(complete=True), asked)


def _pairs(asked: Asked) -> Answer:
    """Measure pairs of nodes in rounds, and say which nodes and which links are slow."""
    known, site = measuring.site(asked)
    if len(site.nodes) < 3:
        raise SpecError(
            f"pairs cannot tell a slow node from a slow link with {len(site.nodes)} nodes",
            expected="at least 3 nodes", fix="--nodes 4",
        )  # fmt: skip
    knobs, case = measuring.settings(asked), asked.options.case
    two = (min(site.nodes),) * 2
    if case:
        case = known.normalise(case_of(case, site, knobs).at(sum(two), two))
    else:
        knobs = known.checked([known.get("engines", site.engine)], knobs, asked.verb)
    with measuring.session(asked, known, site) as session:
        pairer = Pairer(session, site, asked.options.rounds)
        suspects = pairer.train(case) if case else pairer.reduce(knobs)
        session.save(complete=True)
    lines = fabric.pairs(suspects, text.columns())
    if (exclude := asked.options.exclude) is not None:
        exclude.write_text("".join(f"{host}\n" for host in suspects.nodes))
        lines.append(f" {len(suspects.nodes)} slow nodes written to {exclude}")
    lines.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    exit_ = Exit.FAILED if suspects.slow else Exit.PASSED
    if unseen := told.unseen(suspects):
        lines.insert(-1, f" ERROR  no launch ended well on {', '.join(unseen)}")
        exit_ = Exit.ERROR
    return Answer(document=to_doc(suspects), lines=lines, exit=exit_)


def needs_two(site: Site) -> None:
    """SpecError for a site of one rank."""
    if site.world_size < 2:
        raise SpecError(
            "at least 2 ranks are needed: one rank alone does not communicate",
            expected="--cpus 2 or more, or --gpus 2", fix="--cpus 2",
        )  # fmt: skip
