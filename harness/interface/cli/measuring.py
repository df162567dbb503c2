"""Shared code of commands that measure: options, sessions and results."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from harness.base import programs
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, ScaleproofError, SpecError
from harness.cases import Ablation, Catalogue, Plan, Settings, Site, Threshold
from harness.host import copies
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.interface.offered import OPTIONS, Need, again
from harness.interface.report import screen, text
from harness.interface.report.heartbeat import watched
from harness.interface.report.live import Live
from harness.measure.measurer import Measurer
from harness.measure.session import Session
from harness.record import RunRecord


def become(arguments: Sequence[str], results: Path) -> NoReturn:
    """Replace this process by nsys, which runs the command again and reports to ``results``."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise ScaleproofError(
            "--nsys: there is no nsys on the PATH",
            expected="NVIDIA Nsight Systems",
            fix="omit --nsys; scaleproof records a timeline without it, too",
        )
    results.mkdir(parents=True, exist_ok=True)
    rest = [argument for argument in arguments if argument != "--nsys"]
    command = [
        nsys,
        "profile",
        "--trace=nvtx,cuda",
        "--cuda-graph-trace=node",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        f"--output={results / 'scaleproof-%p'}",
        sys.executable,
        *programs.MODULE,
        "harness",
        *rest,
    ]
    sys.stdout.flush()
    os.execv(nsys, command)


def add_measuring_options(sub: argparse.ArgumentParser, *has: Need) -> None:
    """Add the options of a command that measures and ``has`` these properties."""
    options.add_to(sub, *has)
    cases = "cases" in has
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field or option of the case"
        if cases
        else options.advanced(sub, "an option of the engine"),
    )
    if cases:
        sub.add_argument(
            "--ablate",
            action="append",
            default=[],
            choices=tuple(Ablation),
            help=options.advanced(sub, "also measure the largest world size without this part"),
        )


def positive(text: str) -> int:
    """Return a positive integer, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def share(below: float) -> Callable[[str], float]:
    """Return a parser for argparse of shares above 0 and below ``below``."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0.0 < value < below:
            raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and {below:g}")
        return value

    return parsed


def values(asked: Asked) -> dict[str, Any]:
    """Return the values of the shared options by name."""
    return {
        option.name: getattr(asked.options, option.name.replace("-", "_")) for option in OPTIONS
    }


#: Names of values in Python, which printed commands contain, mapped to their names in JSON.
_WORDS = {"True": "true", "False": "false", "None": "null"}


def settings(asked: Asked) -> dict[str, Json]:
    """Return the values of ``--set NAME=VALUE`` by name.

    Values are read as JSON if they parse, else as text. ``True``, ``False`` and ``None`` are also
    accepted, because printed commands contain them.
    """
    out: dict[str, Json] = {}
    for item in asked.options.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise SpecError(f"--set {item}", expected="NAME=VALUE", fix=f"--set {item}=...")
        if name in out:
            raise SpecError(
                f"--set {name} is given twice", expected="one value", fix=f"--set {name}={value}"
            )
        try:
            out[name] = json.loads(_WORDS.get(value, value))
        except ValueError:
            out[name] = value
    return out


def site(asked: Asked) -> tuple[Catalogue, Site]:
    """Return the catalogue of names and the site that the options describe."""
    catalogue = options.catalogue(asked.options.path)
    elsewhere = bool(getattr(asked.options, "dry_run", False))
    return catalogue, options.site(values(asked), catalogue, elsewhere=elsewhere)


def session(
    asked: Asked,
    catalogue: Catalogue,
    site: Site,
    old: Settings | None = None,
    required: Sequence[Threshold] = (),
) -> Session:
    """Return the session of this command.

    ``old`` are the settings of a run that is resumed. ``required`` are thresholds that the suites
    themselves contain.
    """
    given = values(asked)
    if old is not None:
        given["cluster"] = old.cluster
    settings = options.settings(given, site, ("scaleproof", *asked.words))
    notes = list[str]()
    lenient = getattr(asked.options, "inconclusive", "") == "warn"
    fresh = getattr(asked.options, "fresh", False)
    folder = str(Path.cwd()) if asked.script else ""
    clean = tuple(getattr(asked.options, "clean", ()))
    require = getattr(asked.options, "require_verdict", False)
    settings = replace(
        settings, lenient=lenient, require_verdict=require, fresh=fresh, folder=folder, clean=clean
    )
    if getattr(asked.options, "check_only", False):
        settings = replace(settings, fabric=False, timeline=False)
    if old is not None:
        settings, notes = options.resumed(old, settings)
    copies.refuse_missing(Path(settings.folder), "--data", settings.data)
    copies.refuse_missing(Path(settings.folder), "--writes", settings.writes)
    if asked.script and not settings.clean:
        copies.refuse_large(Path(settings.folder), results(asked), settings.data)
    target = Path((getattr(asked.options, "target", None) or "suites").partition("::")[0])
    folder_of_suites = target if target.is_dir() else target.parent
    beside = [folder_of_suites if target.exists() else Path("suites")]
    rules = options.thresholds(given["thresholds"], beside, catalogue, given["references"])
    made = Session(
        catalogue,
        settings,
        results(asked),
        tuple(dict.fromkeys((*rules, *required))),
        watched(Live(sys.stderr), given["heartbeat"] or ""),
    )
    made.run.notes += notes
    return made


def results(asked: Asked) -> Path:
    return Path(asked.options.results or "results")


@dataclass(frozen=True, kw_only=True)
class MeasuredPlans:
    """The record of measured plans, with the errors of plans that could not be measured."""

    record: RunRecord
    interrupted: bool
    errors: tuple[ScaleproofError, ...]

    def ended(self, answer: Answer) -> Answer:
        """Return the answer with exit status INTERRUPTED if the user interrupted the run."""
        return replace(answer, exit=Exit.INTERRUPTED) if self.interrupted else answer


def measured(
    session: Session, plans: Sequence[Plan], then: Callable[[Measurer], None] | None = None
) -> MeasuredPlans:
    """Measure plans, call ``then`` for further measurements, and save the record.

    Measurements before an interrupt are kept. After an interrupt, or after a permanent loss of
    nodes, the record stays incomplete and the run can be resumed.
    """
    session.run.announce(plans)
    measurer = Measurer(session)
    interrupted = False
    try:
        with session:
            measurer.measure(plans)
            if then is not None:
                then(measurer)
    except KeyboardInterrupt:
        interrupted = True
    broken = (measurer.broken(plan) for plan in plans)
    return MeasuredPlans(
        record=session.save(complete=not (interrupted or measurer.lost)),
        interrupted=interrupted,
        errors=tuple(error for error in broken if error is not None),
    )


def judged(session: Session, record: RunRecord, asked: Asked) -> Answer:
    """Write the page of a run and return its tables with the exit status of its verdicts."""
    from harness.interface.report.page import page as pages

    page = pages.write(record, session.run.folder)
    rerun = again(session.run.settings.argv)  # the command that began the run, if it was resumed
    return Answer(
        document=to_doc(record),
        lines=screen.lines(
            record, text.shown(session.run.folder), rerun, text.columns(), page=page
        ),
        exit=record.exit_status,
    )
