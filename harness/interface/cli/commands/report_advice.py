"""The command ``report advice``: the largest losses of a run and remedies; --try measures them."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from harness.analysis.choices.trials import Loss, Tried, losses, trial, tried
from harness.analysis.reading import load
from harness.analysis.rungs import Rung, rungs
from harness.analysis.timeline.advice import Remedy
from harness.analysis.verify import refuse_unsealed
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, SpecError
from harness.cases import Catalogue
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked, vouched
from harness.interface.cli.measuring import MeasuredPlans
from harness.interface.report import advice, text
from harness.interface.report.live import Live
from harness.measure.session import Session
from harness.record import RunRecord, Status

HELP = {
    "report advice": "list the largest losses of a run and possible remedies; --try measures them",
}
EXAMPLES = {
    "report advice": (
        "report advice RUN",
        "report advice RUN --try --case fsdp",
    ),
}


class Advised(TypedDict):
    losses: Sequence[Loss]
    tried: Sequence[Tried]
    run: NotRequired[str]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "report advice": (Advised,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("run", type=Path)
    sub.add_argument(
        "--case", default="", metavar="TEXT", help="only cases whose name contains this text"
    )
    sub.add_argument(
        "--try",
        action="store_true",
        dest="trying",
        help="measure every remedy and the unchanged case in the same blocks",
    )
    options.add_results(sub)


def act(asked: Asked) -> Answer:
    args = asked.options
    width = text.columns()
    run = load(args.run)
    catalogue = options.catalogue(list(run.settings.paths))
    trusted = _trusted(run, args.case, args.run)
    lost = [(rung, list(losses(rung, catalogue))) for rung in trusted]
    all_losses = [loss for _, of_rung in lost for loss in of_rung]
    lines = advice.lost(all_losses, width)
    document: dict[str, Json] = {"losses": to_doc(tuple(all_losses)), "tried": []}
    if not args.trying:
        if any(loss.remedies for loss in all_losses):
            measuring_words = f" measure  scaleproof report advice {args.run} --try"
            lines += text.wrap_command(measuring_words, width, 10)
        elif any(loss.change for loss in all_losses):
            lines += _of_script(run, args.run, width)
        return vouched(Answer(document=document, lines=lines), [(run, args.run)])
    refuse_unsealed(run, args.run if args.run.is_dir() else args.run.parent)
    changes = [(rung, remedies) for rung, of_rung in lost if (remedies := _changes(of_rung))]
    if not changes:
        raise SpecError(
            "the losses of this run have no remedy to try",
            where=str(args.run),
            expected="a large loss that a setting can reduce",
            fix="scaleproof check",
        )
    measured, outcome, folder = _try(asked, run, changes, catalogue)
    document |= {"tried": to_doc(tuple(outcome)), "run": str(folder)}
    lines += ["", *advice.outcome(outcome, width)]
    lines.append(f" report   scaleproof report {text.shown(folder)}")
    failed = any(verdict.status is Status.ERROR for verdict in measured.record.verdicts)
    status = Exit.ERROR if failed else Exit.PASSED
    return measured.ended(Answer(document=document, lines=lines, exit=status))


def _of_script(run: RunRecord, folder: Path, width: int) -> list[str]:
    """Return the commands that measure a changed script, and compare it with this run."""
    argv = list(run.settings.argv)
    end = argv.index("--") if "--" in argv else len(argv)
    changed = shlex.join([*argv[:end], "--results", "changed", *argv[end:]])
    return [
        *text.wrap_command(f" changed  {changed}", width, 10),
        *text.wrap_command(f" compare  scaleproof compare {folder} changed", width, 10),
    ]


def _trusted(run: RunRecord, case: str, where: Path) -> list[Rung]:
    """Return the cases whose profile represents their unprofiled steps.

    Raise SpecError if there are none.
    """
    rungs_of_case = [rung for rung in rungs(run) if case in rung.arm.case.id]
    trusted = [rung for rung in rungs_of_case if not rung.refused]
    if rungs_of_case and not trusted:
        raise SpecError(
            f"the profile of {rungs_of_case[0].arm.case.id} cannot be used: profiled steps take"
            f" {rungs_of_case[0].perturbation:.2f}x as long as unprofiled ones",
            where=str(where),
            expected="a profile without operators, or longer steps",
            fix=f"scaleproof run {rungs_of_case[0].arm.case.family}",
        )
    if not trusted:
        named = f" has {case!r} in its name" if case else ""
        raise SpecError(
            f"no profiled case in this run{named}",
            where=str(where),
            expected="a scaling sweep that was measured with its timeline",
            fix=f"scaleproof report {where}",
        )
    return trusted


def _changes(lost: Sequence[Loss]) -> list[Remedy]:
    """Return every remedy once, even if it applies to several losses."""
    return list({remedy.name: remedy for loss in lost for remedy in loss.remedies}.values())


def _try(
    asked: Asked, run: RunRecord, changes: Sequence[tuple[Rung, list[Remedy]]], catalogue: Catalogue
) -> tuple[MeasuredPlans, list[Tried], Path]:
    """Measure a plan of remedies for each case, with the settings of the run."""
    plans = [trial(rung, remedies) for rung, remedies in changes]
    settings = replace(
        run.settings,
        timeline=False,
        fabric=False,
        argv=("scaleproof", *asked.words),
        budget_s=None,
        nonce="",
    )
    session = Session(catalogue, settings, asked.options.results, (), Live(sys.stderr))
    measured = measuring.measured(session, plans)
    outcome = [
        attempt
        for plan, (_, remedies) in zip(plans, changes, strict=True)
        for attempt in tried(measured.record, plan, remedies)
    ]
    return measured, outcome, session.run.folder
