"""``isolate``: the fewest nodes on which a training breaks or hangs."""

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
#: What is trained, and for how many steps in each launch.
CASE = "ddp/decoder-nano"
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


#: What it prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "network isolate": (Isolated,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    measuring.add_measuring_options(sub, cases=False)
    sub.add_argument("--case", default=CASE, help=f"what is trained (default: {CASE})")
    sub.add_argument(
        "--steps",
        type=measuring.positive,
        default=STEPS,
        metavar="N",
        help=f"steps of a launch: a hang has to come within them (default: {STEPS})",
    )


def act(asked: Asked) -> Answer:
    """Launch on ever fewer nodes, and name those without which nothing breaks."""
    catalogue, site = measuring.site(asked)
    if len(site.nodes) < 2:
        raise SpecError(
            "isolate has one node, which is all that it could name",
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
    """FAILED if all nodes break together; INCONCLUSIVE if they do so too seldom to bisect."""
    if whole.breaks:
        return Exit.FAILED
    return Exit.INCONCLUSIVE if whole.broke else Exit.PASSED


def _sentences(isolated: Isolated) -> list[str]:
    """The findings in sentences, and the launches on which they rest."""
    tried = isolated["tried"]
    whole = tried[0]
    launches = sum(row["launches"] for row in tried)
    if not whole["breaks"]:
        seldom = ", too seldom to bisect: more --steps may show it" if whole["broke"] else ""
        return [f"{whole['broke']} of {whole['launches']} launches on all nodes broke{seldom}"]
    needed = isolated["needed"]
    sentences = [f"NEEDED  {', '.join(needed)}: together they break, without any of them not"]
    if len(needed) == 1:
        sentences = [f"NEEDED  {needed[0]} alone breaks"]
    for row in tried:
        if {*row["nodes"]} == {*needed}:
            sentences.append(f"they broke in {row['broke']} of {row['launches']} launches")
    sentences.append(f"the last one: {isolated['why']}")
    if isolated["others_break"]:
        sentences.append("the other nodes break as well, without these: there is another cause")
    elif isolated["others_break"] is False:
        sentences.append("the other nodes train well together")
    sentences.append(f"{len(tried)} sets of nodes, {launches} launches")
    return sentences
