"""The command ``network isolate``: the smallest set of nodes on which training fails or hangs."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases.targets import case_of
from harness.features.nodes.isolation import Isolator, Narrowing, TriedSet
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.interface.report.text import wrap

HELP = {
    "network isolate": "find the smallest set of nodes on which a training run breaks or hangs",
}
EXAMPLES = {
    "network isolate": (
        "network isolate --engine slurm --nodes 64x8 --gpus 512 --case fsdp/decoder-small",
        "network isolate --engine emulated --nodes 4x1 --steps 5",
    ),
}
#: The case that is trained by default.
CASE = "ddp/decoder-nano"
#: Default number of steps in each launch.
STEPS = 20


class TriedNodes(TypedDict):
    nodes: Sequence[str]
    breaks: bool
    broke: int
    launches: int


class Isolated(TypedDict):
    run: str
    case: str
    needed: Sequence[str]
    others_break: bool | None
    why: str
    tried: Sequence[TriedNodes]


#: The document that the command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "network isolate": (Isolated,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    measuring.add_measuring_options(sub, "records")
    sub.add_argument("--case", default=CASE, help=f"the case to train (default: {CASE})")
    sub.add_argument(
        "--steps",
        type=measuring.positive,
        default=STEPS,
        metavar="N",
        help=f"steps of a launch; a hang must occur within them (default: {STEPS})",
    )


def act(asked: Asked) -> Answer:
    """Launch on smaller and smaller sets of nodes until the nodes that fail together are known."""
    catalogue, site = measuring.site(asked)
    if len(site.nodes) < 2:
        raise SpecError(
            "the run has a single node, so there is nothing to isolate",
            expected="at least 2 nodes",
            fix="--nodes 8",
        )
    first = (site.nodes[0],)
    case = case_of(asked.options.case, site, measuring.settings(asked)).at(sum(first), first)
    asked.options.no_fabric = asked.options.no_timeline = True
    with measuring.session(asked, catalogue, site) as session:
        isolator = Isolator(session, site, catalogue.normalise(case), asked.options.steps)
        narrowing = Narrowing(range(len(site.nodes)), isolator.breaks)
        needed = narrowing.needed()
        others = narrowing.others(needed) if needed else None
        hosts = isolator.hosts
        document: Isolated = {
            "run": session.run.name,
            "case": asked.options.case,
            "needed": [hosts[node] for node in needed],
            "others_break": others,
            "why": isolator.why,
            "tried": [
                {
                    "nodes": [hosts[node] for node in tried.nodes],
                    "breaks": tried.breaks,
                    "broke": tried.broke,
                    "launches": tried.launches,
                }
                for tried in narrowing.tried
            ],
        }
        session.run.notes.append(f"isolate: {'; '.join(_sentences(document))}")
        session.save(complete=True)
    lines = [
        line
        for sentence in _sentences(document)
        for line in wrap(f" {sentence}", text.columns(), 1)
    ]
    lines.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    return Answer(document=to_doc(document), lines=lines, exit=_exit(narrowing.tried[0]))


def _exit(whole: TriedSet) -> Exit:
    """Return the exit status that follows from the launches on all nodes.

    The status is INCONCLUSIVE if some launches failed, but too few for a bisection.
    """
    if whole.breaks:
        return Exit.FAILED
    return Exit.INCONCLUSIVE if whole.broke else Exit.PASSED


def _sentences(isolated: Isolated) -> list[str]:
    """Return the findings as sentences, with the number of launches behind them."""
    tried = isolated["tried"]
    whole = tried[0]
    launches = sum(row["launches"] for row in tried)
    if not whole["breaks"]:
        seldom = ", too rarely to bisect; more --steps may help" if whole["broke"] else ""
        return [f"{whole['broke']} of {whole['launches']} launches on all nodes failed{seldom}"]
    needed = isolated["needed"]
    sentences = [
        f"NEEDED  {', '.join(needed)}: launches fail on all of them together, but succeed without"
        " any one of them"
    ]
    if len(needed) == 1:
        sentences = [f"NEEDED  launches fail on {needed[0]} alone"]
    for row in tried:
        if {*row["nodes"]} == {*needed}:
            sentences.append(f"{row['broke']} of {row['launches']} launches on them failed")
    sentences.append(f"the last failure: {isolated['why']}")
    if isolated["others_break"]:
        sentences.append("launches on the other nodes fail as well, so there is another cause")
    elif isolated["others_break"] is False:
        sentences.append("launches on the other nodes succeed")
    sentences.append(f"{len(tried)} sets of nodes, {launches} launches")
    return sentences
