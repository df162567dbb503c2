"""The command ``accept report``: the acceptance report of a system, and the archive behind it."""

import argparse
import datetime
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.nodes import Drift
from harness.analysis.reading import load
from harness.analysis.verify import rejudge
from harness.base import files
from harness.base.documents import to_doc
from harness.features.acceptance import others
from harness.features.acceptance.clauses import Requirement
from harness.features.acceptance.contract import Contract, find, load_contract
from harness.features.acceptance.handover import CoveredNode, Handover, Seal, handover
from harness.features.acceptance.others import OthersResult
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import RunRecord, archive
from harness.record.archive import Packed
from harness.record.outcome import exit_status

HELP = {
    "accept report": "write the acceptance report of a system, and the archive that proves it",
}
EXAMPLES = {
    "accept report": (
        "accept report RUN --to acceptance",
        "accept report TODAY --contract retained --accepted EARLIER_RUN --to acceptance",
    ),
}
#: Names of the files in the folder of a report.
PAGE = "handover.html"
ARCHIVE = "runs.tar.gz"
EXCLUDE = "exclude.txt"


class HandedOver(TypedDict):
    status: str
    made_on: str
    contract: Contract | None
    requirements: Sequence[Requirement]
    stand_ins: Sequence[Requirement]
    beyond: Sequence[tuple[str, str]]
    exclude: Sequence[tuple[str, str]]
    drift: Sequence[Drift]
    nodes: Sequence[CoveredNode]
    seals: Sequence[Seal]
    accepted: Sequence[Seal]
    others: Sequence[OthersResult]
    archive: str
    sha256: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "accept report": (HandedOver,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write to")
    sub.add_argument(
        "--contract",
        metavar="FILE",
        help="the agreed contract or thresholds (default: the thresholds of the runs)",
    )
    sub.add_argument(
        "--accepted",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="a run that was accepted before, for clauses with of_accepted",
    )
    sub.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a result of another tool (nccl-tests, DCGM, cmax, ...), shown but not judged",
    )


def act(asked: Asked) -> Answer:
    """Write the page, the archive and the list of nodes to exclude to one folder."""
    from harness.features.acceptance.acceptance_page import Archived, render

    to = asked.options.to
    agreed = None if asked.options.contract is None else find(asked.options.contract)
    contract = None if agreed is None else load_contract(agreed)
    runs = list(map(_loaded, asked.options.runs))
    accepted = list(map(_loaded, asked.options.accepted))
    results = tuple(map(others.read, asked.options.beside))
    judged = handover(runs, datetime.datetime.now(datetime.UTC).date(), contract, accepted)
    agreed_on = {} if agreed is None else {archive.CONTRACT: agreed.read_bytes()}
    packed = [
        (
            Packed(run=run.run, folder=archive.of_run(run), head=run.head),
            {**archive.files_of(folder, traces=True), **agreed_on},
        )
        for run, folder in [*runs, *accepted]
    ]
    rules = (
        None
        if contract is None
        else [clause.rule for clause in contract.clauses if not clause.of_accepted]
    )
    shown = [(run if rules is None else rejudge(run, rules), folder) for run, folder in runs]
    body, manifest = archive.write(packed)
    held = Archived(file=ARCHIVE, sha256=hashlib.sha256(body).hexdigest(), manifest=manifest)
    exclude = "".join(f"{host}\n" for host, _ in judged.exclude)
    for name, content in (
        (ARCHIVE, body),
        (EXCLUDE, exclude.encode()),
        (PAGE, render(judged, shown, held, agreed_on.get(archive.CONTRACT), results).encode()),
    ):
        files.put(to / name, content, "--to")
    return Answer(
        document={
            **to_doc(judged),
            "others": to_doc(results),
            "archive": str(to / ARCHIVE),
            "sha256": held.sha256,
        },
        lines=_lines(judged, to, held.sha256),
        exit=exit_status([judged.status]),
    )


def _loaded(path: Path) -> tuple[RunRecord, Path]:
    """Return a run and its folder."""
    return load(path), path if path.is_dir() else path.parent


def _lines(result: Handover, to: Path, digest: str) -> list[str]:
    from harness.features.acceptance.acceptance_page import MEANS, covered, screen, sentence

    width = text.columns()
    lines = [f" {result.status}", *text.wrap(f" {sentence(result)}", width, 1)]
    lines += text.wrap(f" {MEANS[result.status]}", width, 1)
    lines += [
        "",
        *screen(
            [requirement for requirement in result.requirements if requirement.status is not None],
            width,
        ),
    ]
    lines += text.wrap(f" on {covered(result)}", width, 4)
    if unmeasured := [
        requirement.rule.name for requirement in result.requirements if requirement.status is None
    ]:
        lines += text.wrap(f" not measured: {', '.join(unmeasured)}", width, 15)
    if result.stand_ins:
        by_status = Counter(str(stand_in.status) for stand_in in result.stand_ins)
        counts = ", ".join(f"{n} {status}" for status, n in by_status.items())
        lines += ["", *text.wrap(f" not counted (simulated or controls): {counts}", width, 13)]
    if result.beyond:
        names = ", ".join(name for name, _ in result.beyond)
        lines += text.wrap(f" not judged (other hardware or measurements): {names}", width, 13)
    if any(requirement.late for requirement in result.requirements):
        lines += text.wrap(
            " some thresholds were given after the measurement; the record cannot prove that they"
            " were agreed on before it",
            width,
            1,
        )
    if unsigned := [seal.run for seal in result.seals if not seal.signer]:
        lines += text.wrap(f" NOT SIGNED: {', '.join(unsigned)}", width, 13)
    lines.append("")
    for host, why in result.exclude:
        lines += text.wrap(f" EXCLUDE  {host}: {why}", width, 10)
    for seal in (*result.seals, *result.accepted):
        for difference in seal.differences:
            lines += text.wrap(f" DOES NOT VERIFY  {seal.run}: {difference}", width, 18)
    return [
        *lines,
        f" document  {to / PAGE}",
        f" archive   {to / ARCHIVE}",
        f" sha256    {digest}",
    ]
