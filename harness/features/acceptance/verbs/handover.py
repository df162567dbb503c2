"""``handover``: the acceptance document of a system, and the archive that proves it."""

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
from harness.base.errors import SpecError
from harness.cases.rules import load_thresholds
from harness.features.acceptance.handover import Handover, Requirement, Seal, handover
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import RunRecord, archive
from harness.record.archive import Packed
from harness.record.outcome import exit_status

HELP = dict(handover="write the acceptance document of a system, and the archive that proves it")
EXAMPLES = dict(
    handover=(
        "handover RUN --to acceptance",
        "handover LADDERS FABRIC RECOVERY --contract contract.toml --to acceptance",
    ),
)
#: What the folder of a handover holds.
PAGE, ARCHIVE, EXCLUDE = "handover.html", "runs.tar.gz", "exclude.txt"


class HandedOver(TypedDict):
    status: str
    made_on: str
    requirements: Sequence[Requirement]
    stand_ins: Sequence[Requirement]
    beyond: Sequence[tuple[str, str]]
    exclude: Sequence[tuple[str, str]]
    drift: Sequence[Drift]
    seals: Sequence[Seal]
    archive: str
    sha256: str


#: What each verb prints with ``--json``: a document, or one for each way of asking.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "handover": (HandedOver,),
}


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder to write to")
    sub.add_argument(
        "--contract",
        type=Path,
        metavar="FILE",
        help="the rules that were agreed on, as in thresholds.toml (default: those of the runs)",
    )


def act(asked: Asked) -> Answer:
    """Page, archive and exclude list in one folder."""
    from harness.features.acceptance.report.page import Archived, render

    paths, to = asked.options.runs, asked.options.to
    runs = [(load(path), path if path.is_dir() else path.parent) for path in paths]
    rules = None if (agreed := asked.options.contract) is None else load_thresholds(agreed)
    if rules == ():
        raise SpecError(
            "a contract without a rule requires nothing",
            where=str(agreed),
            expected="one [[rule]] at least, as in suites/thresholds.toml",
            fix=f"scaleproof rules {agreed}",
        )
    document = handover(runs, datetime.datetime.now(datetime.UTC).date(), rules)
    agreed_on = {} if agreed is None else {archive.CONTRACT: agreed.read_bytes()}
    packed = [
        (
            Packed(run=run.run, folder=archive.of_run(run), head=run.head),
            {**archive.files_of(folder, traces=True), **agreed_on},
        )
        for run, folder in runs
    ]
    shown = [(run if rules is None else rejudge(run, rules), folder) for run, folder in runs]
    body, manifest = archive.write(packed)
    held = Archived(file=ARCHIVE, sha256=hashlib.sha256(body).hexdigest(), manifest=manifest)
    exclude = "".join(f"{host}\n" for host, _ in document.exclude)
    for name, content in (
        (ARCHIVE, body),
        (EXCLUDE, exclude.encode()),
        (PAGE, render(document, shown, held, agreed_on.get(archive.CONTRACT)).encode()),
    ):
        files.put(to / name, content, "--to")
    return Answer(
        document={**to_doc(document), "archive": str(to / ARCHIVE), "sha256": held.sha256},
        lines=_lines(document, runs, to, held.sha256),
        exit=exit_status([document.status]),
    )


def _lines(found: Handover, runs: list[tuple[RunRecord, Path]], to: Path, digest: str) -> list[str]:
    from harness.features.acceptance.report.page import MEANS, contract, sentence

    width = text.columns()
    out = [f" {found.status}", *text.wrap(f" {sentence(found)}", width, 1)]
    out += text.wrap(f" {MEANS[found.status]}", width, 1)
    judged = [r for r in found.requirements if r.status is not None]
    if judged:
        out += ["", *contract(judged).lines(width)]
    if unmeasured := [r.rule.name for r in found.requirements if r.status is None]:
        out += text.wrap(f" not measured: {', '.join(unmeasured)}", width, 15)
    if found.stand_ins:
        by_status = Counter(str(r.status) for r in found.stand_ins)
        counts = ", ".join(f"{n} {status}" for status, n in by_status.items())
        out += ["", *text.wrap(f" not counted, of stand-ins or controls: {counts}", width, 13)]
    if found.beyond:
        names = ", ".join(name for name, _ in found.beyond)
        out += text.wrap(f" for other hardware: {names}", width, 21)
    if any(r.late for r in found.requirements):
        out += text.wrap(
            " some rules were given after the measurement: the record cannot prove that they were"
            " agreed before it",
            width,
            1,
        )
    out.append("")
    for host, why in found.exclude:
        out += text.wrap(f" EXCLUDE  {host}: {why}", width, 10)
    for seal in found.seals:
        for difference in seal.differences:
            out += text.wrap(f" DOES NOT VERIFY  {seal.run}: {difference}", width, 18)
    return [
        *out,
        f" document  {to / PAGE}",
        f" archive   {to / ARCHIVE}",
        f" sha256    {digest}",
    ]
