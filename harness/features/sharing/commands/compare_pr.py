"""The command ``compare pr``: measure what a change costs, for its pull request."""

import argparse
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases import CaseSpec
from harness.cases.catalogue import Catalogue
from harness.features.sharing import change, checkouts, comment
from harness.features.sharing.change import AGAIN, BASE, HEAD, CaseChange
from harness.features.sharing.checkouts import Checkout, Version
from harness.interface import options
from harness.interface.cli import environments, measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import RunRecord, Status

HELP = {
    "compare pr": "measure what a change costs, for its pull request",
}
EXAMPLES = {
    "compare pr": (
        "compare pr --base origin/main --gpus 8 -- train.py",
        "compare pr ddp/tinynet-small/weak --path models --base main --cpus 2 --allow 0.03",
    ),
}
#: Exit status for each status of the worst case. It is INCONCLUSIVE for all other statuses.
_EXITS = {Status.PASS: Exit.PASSED, Status.FAIL: Exit.FAILED, Status.ERROR: Exit.ERROR}


@dataclass(frozen=True, kw_only=True)
class PullRequest:
    """A change and its cost.

    ``sentence`` is the result, and ``changes`` has an entry for each case. ``base`` and ``head``
    are commits, and ``run`` is the folder of the run with all launches.
    """

    sentence: str
    base: str
    head: str
    changes: tuple[CaseChange, ...]
    run: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "compare pr": (PullRequest,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument(
        "targets", nargs="*", metavar="CASE", help="a case, measured at its largest world size"
    )
    sub.add_argument(
        "--base", required=True, metavar="REF", help="the branch that the change is merged into"
    )
    sub.add_argument(
        "--head", metavar="REF", help="the change (default: the working tree of the clone)"
    )
    sub.add_argument(
        "--allow",
        type=measuring.share(1.0),
        default=change.ALLOWED,
        metavar="SHARE",
        help=f"share of its speed that a case may lose (default: {change.ALLOWED:g})",
    )
    sub.add_argument(
        "--install",
        default="",
        metavar="COMMAND",
        help="a shell command with {source} and {folder} that creates {folder}/bin/python"
        " (default: this environment, with the files of each version first on the import path)",
    )
    sub.add_argument("--markdown", type=Path, metavar="FILE", help="write the comment to this file")
    sub.add_argument(
        "--gitlab", type=Path, metavar="FILE", help="write a Code Quality report to this file"
    )
    measuring.add_measuring_options(sub, "cases", "scripts", "records")
    sub.set_defaults(script=True)


def act(asked: Asked) -> Answer:
    """Unpack both versions and measure them in one run; the clone is not changed."""
    args = asked.options
    if not (args.targets or asked.script):
        raise SpecError(
            "there is nothing to measure",
            expected="a case, or a script after --",
            fix=f"scaleproof compare pr --base {args.base} --cpus 2 -- train.py",
        )
    project = checkouts.root_of(Path.cwd())
    head = checkouts.head_of(project, args.head)
    base = checkouts.base_of(project, args.base, head.commit)
    if base.commit == head.commit:
        sentence = f"nothing has changed since {args.base}: base and head are {base.short}"
        unchanged = PullRequest(
            sentence=sentence, base=base.commit, head=head.commit, changes=(), run=""
        )
        return Answer(document=to_doc(unchanged), lines=[f" {sentence}"])
    results = measuring.results(asked)
    data = tuple(os.path.relpath(Path(p).absolute(), project) for p in args.data)
    before, after = (
        checkouts.unpacked(project, version, results / "pr", data=data, install=args.install)
        for version in (base, head)
    )
    changes, run, folder = _measured(asked, project, before, after)
    return _answer(asked, changes, (base, head), run, folder)


def _measured(
    asked: Asked, project: Path, before: Checkout, after: Checkout
) -> tuple[list[CaseChange], RunRecord, Path]:
    versions = {BASE: before, HEAD: after, AGAIN: before}
    session, cases = environments.interleavers(
        asked,
        asked.options.targets,
        tuple((name, str(version.python)) for name, version in versions.items()),
        checkouts=tuple((name, str(version.folder)) for name, version in versions.items()),
        project=str(project),
        folder=str(Path.cwd()) if asked.script else "",
    )
    catalogue = options.catalogue(asked.options.path)
    note = session.progress.note
    changes = []
    allow = asked.options.allow
    began_s = time.monotonic()
    budget_s = session.settings.budget_s or math.inf
    try:
        with session:
            for number, (case, interleaver) in enumerate(cases):
                file = _file_of(case, catalogue, project)
                until_s = began_s + budget_s * (number + 1) / len(cases)
                changes.append(change.measured(interleaver, case.id, file, allow, note, until_s))
    except KeyboardInterrupt:
        session.save(complete=False)
        raise
    run = session.save(complete=True)
    return [change.checked(c, run) for c in changes], run, session.run.folder


def _file_of(case: CaseSpec, catalogue: Catalogue, project: Path) -> str:
    """Return the path in the project of a file that the case uses; empty if there is none."""
    if case.script:
        words = [Path(word) for word in case.script.split() if word.endswith(".py")]
        paths = [word.absolute() for word in words]
    else:
        paths = [Path(file) for file in catalogue.files(case).values() if Path(file).is_absolute()]
    inside = [str(path.relative_to(project)) for path in paths if path.is_relative_to(project)]
    return inside[0] if inside else ""


def _answer(
    asked: Asked,
    changes: Sequence[CaseChange],
    versions: tuple[Version, Version],
    run: RunRecord,
    folder: Path,
) -> Answer:
    args = asked.options
    base, head = versions
    about = [f"{run.machine.title}, torch {run.software.get('torch')}, run {run.run}"]
    body = comment.markdown(changes, versions, about)
    if args.markdown is not None:
        files.put(args.markdown, ("\n".join(body) + "\n").encode(), "--markdown")
    if args.gitlab is not None:
        files.put(args.gitlab, comment.quality(changes).encode(), "--gitlab")
    width = text.columns()
    lines = [
        *text.wrap(f" {comment.sentence(changes)}", width, 1),
        f" base {base.short} ({base.asked}), head {head.short} ({head.asked})",
        "",
        *comment.table(changes).lines(width),
        "",
        f" report   scaleproof report {text.shown(folder)}",
    ]
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as page:
            page.write("\n".join(body) + "\n")
    if "GITHUB_ACTIONS" in os.environ:
        lines += comment.annotations(changes)
    status = change.worst(changes).status
    return Answer(
        document=to_doc(
            PullRequest(
                sentence=comment.sentence(changes),
                base=base.commit,
                head=head.commit,
                changes=tuple(changes),
                run=str(folder),
            )
        ),
        lines=lines,
        exit=_EXITS.get(status, Exit.INCONCLUSIVE),
    )
