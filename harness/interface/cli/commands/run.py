"""The command ``run``: measure and judge a script, a case or a recipe, now or from a queue."""

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.base import shipped
from harness.base.documents import to_doc
from harness.base.errors import SpecError
from harness.cases import Catalogue, Mode, Plan, Protocol, Site, Threshold
from harness.cases.recipes import REAL
from harness.cases.script import script_plan
from harness.cases.targets import bounds_of, plans_of
from harness.host import doctor
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.commands import jobs
from harness.interface.cli.commands.jobs import Detached
from harness.interface.cli.planned_hardware import USUAL_TIER, tier
from harness.interface.options import advanced
from harness.launch import deploy
from harness.launch.engine import Command, Where
from harness.measure import run
from harness.measure.session import Session
from harness.record import RunRecord

HELP = {
    "run": "measure a script, a case or a recipe, and judge it by its thresholds",
}
EXAMPLES = {
    "run": (
        "run ddp/decoder-tiny/weak --gpus 8",
        "run --script --gpus 8 -- train.py --lr 3e-4",
    ),
}


class Commands(TypedDict):
    commands: Sequence[Command]


class JobScript(TypedDict):
    script: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run": (RunRecord, Commands, Detached, JobScript),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the target, the options of a script, and how the run is started."""
    sub.add_argument(
        "target",
        nargs="?",
        type=shipped.suite,
        help="a case (ddp/decoder-tiny/weak), file.py or file.py::recipe",
    )
    sub.add_argument(
        "--script",
        action="store_true",
        help="measure the user's own script, unchanged: --script -- train.py ARGS",
    )
    sub.add_argument(
        "--mode",
        choices=tuple(Mode),
        default=Mode.WEAK,
        help="scaling of a script: its batch grows with the ranks (weak) or is shared (strong)",
    )
    sub.add_argument(
        "-m",
        dest="marks",
        metavar="MARKS",
        help=f"suites with these pytest marks (default of a folder: {USUAL_TIER!r})",
    )
    sub.add_argument("--resume", metavar="RUN", help="continue an interrupted run")
    sub.add_argument(
        "--dry-run", action="store_true", help="print the commands that would start the ranks"
    )
    _add_advanced(sub)
    measuring.add_measuring_options(sub, "cases", "scripts", "records")


def _add_advanced(sub: argparse.ArgumentParser) -> None:
    """Add the options that only ``--help-all`` shows."""

    def shown(text: str) -> str:
        return advanced(sub, text)

    sub.add_argument(
        "--fresh",
        action="store_true",
        help=shown("start every rank of a script as a new interpreter instead of a fork"),
    )
    sub.add_argument(
        "--clean",
        nargs="+",
        default=[],
        metavar="PATH",
        help=shown("run a script in its own folder, and remove these files after each launch"),
    )
    sub.add_argument(
        "--samples-per-step",
        type=measuring.positive,
        metavar="N",
        help=shown("samples of a script's step on one rank, if they cannot be counted"),
    )
    sub.add_argument(
        "--accept",
        default="",
        metavar="CHECKS",
        help=shown(
            "checks of a script that may fail (replicas,idle); the record and every table name them"
        ),
    )
    sub.add_argument(
        "--first-rung",
        type=measuring.positive,
        default=1,
        metavar="N",
        help=shown("smallest world size of a script, if one device cannot hold its model"),
    )
    sub.add_argument(
        "--check-only",
        action="store_true",
        help=shown("check a script's training at each world size, without figures"),
    )
    sub.add_argument(
        "--steps",
        type=measuring.positive,
        metavar="N",
        help=shown("timed steps in each launch of a script (default: chosen by calibration)"),
    )
    sub.add_argument(
        "--warm-up",
        type=measuring.positive,
        metavar="N",
        help=shown("steps before the timed ones (default: chosen by calibration)"),
    )
    sub.add_argument(
        "--require-verdict",
        action="store_true",
        help=shown("end with status 5 if no threshold judges a result; suites always do"),
    )
    sub.add_argument(
        "--inconclusive",
        choices=("fail", "warn"),
        default="fail",
        help=shown("whether an INCONCLUSIVE verdict fails the run"),
    )
    sub.add_argument(
        "--detach", action="store_true", help=shown("submit the run to the queue of the engine")
    )
    sub.add_argument("--nsys", action="store_true", help=shown("run under NVIDIA Nsight Systems"))


def act(asked: Asked) -> Answer:
    """Measure the target; after an interrupt, keep and show the measurements so far."""
    if asked.options.nsys:
        measuring.become(asked.words, measuring.results(asked))
    if asked.options.resume:
        session, plans = _resumed(asked)
    elif asked.options.target or asked.options.script:
        suite = asked.options.target and Path(asked.options.target.partition("::")[0]).exists()
        asked.options.require_verdict |= bool(suite)
        catalogue, site = measuring.site(asked)
        plans = _plans(asked, catalogue, site)
        if asked.options.dry_run:  # works without a scheduler and without packages of an engine
            would = jobs.submit if asked.options.detach else _dry_run
            return would(asked, catalogue, site)
        required: tuple[Threshold, ...] = ()
        if not asked.options.script:
            required = bounds_of(asked.options.target, site, catalogue, _tier(asked))
        session = measuring.session(asked, catalogue, site, required=required)
        if asked.options.detach:
            return jobs.submit(asked, catalogue, site)
    else:
        raise SpecError(
            "there is nothing to run",
            expected="a case, a recipe, --script or --resume RUN",
            fix="scaleproof run ddp/decoder-tiny/weak --cpus 2",
        )
    return _measured(asked, session, plans)


def _plans(asked: Asked, catalogue: Catalogue, site: Site) -> list[Plan]:
    """Return the plans that the command requests: a target's plans or the plan of a script."""
    args = asked.options
    settings = measuring.settings(asked)
    ablations = list(dict.fromkeys(args.ablate))
    if not args.script:
        control = bool(options.setups(measuring.values(asked)))
        plans = plans_of(
            args.target, site, catalogue, settings, ablations, _tier(asked), control=control
        )
        if not plans:
            raise SpecError(
                f"no suite of {args.target} has the requested marks",
                where=f"-m {args.marks or USUAL_TIER!r}",
                fix="scaleproof run plan " + args.target,
            )
        return plans
    if args.target or settings or ablations:
        option = args.target or ("--set" if settings else "--ablate")
        raise SpecError(
            f"{option} cannot be used with --script",
            expected="the script's own arguments, after --",
            fix="scaleproof run --script --cpus 2 -- train.py ARGS",
        )
    _check_clean(args.clean)
    samples = args.samples_per_step or 0
    protocol = _protocol(args.steps, args.warm_up)
    if args.check_only:
        protocol = replace(protocol, min_blocks=0, max_blocks=0)
    return [
        script_plan(
            asked.script, site, Mode(args.mode), samples, protocol, args.first_rung, args.accept
        )
    ]


def _tier(asked: Asked) -> Callable[[frozenset[str]], bool]:
    """Return which suites of the target are measured, by the marks of their functions."""
    of_folder = Path(asked.options.target or "").is_dir()
    marks = asked.options.marks or (USUAL_TIER if of_folder else "")
    return tier(marks) if marks else lambda _: True


def _protocol(steps: int | None, warm_up: int | None) -> Protocol:
    """Return the protocol of a script.

    Its numbers of steps are the user's, or else calibration launches choose them.
    """
    if steps is None and warm_up is None:
        return REAL
    cut = warm_up or REAL.cut
    return replace(REAL, steps=cut + (steps or REAL.steps - REAL.cut), cut=cut, fixed=True)


def _check_clean(paths: Sequence[str]) -> None:
    """Raise SpecError if ``--clean`` would remove an existing file or one outside this folder."""
    working_folder = Path.cwd()
    for path in paths:
        target = (working_folder / path).resolve()
        if not target.is_relative_to(working_folder) or target == working_folder:
            raise SpecError(
                f"--clean {path}: the path is not below this folder",
                where=str(working_folder),
                expected="files that the script writes, for example --clean out checkpoints",
                fix=f"ls {target}",
            )
        if target.exists():
            raise SpecError(
                f"--clean {path}: the path exists already and would be removed",
                where=str(working_folder),
                expected="files that only launches write",
                fix=f"mv {path} {path}.mine",
            )


def _measured(asked: Asked, session: Session, plans: list[Plan]) -> Answer:
    session.run.notes += jobs.notes()
    measured = measuring.measured(session, plans)
    doctor.remove_paths(Path.cwd(), session.settings.clean)
    answer = measuring.judged(session, measured.record, asked)
    if measured.errors and not measured.interrupted:
        return replace(answer, error=measured.errors[0])
    return measured.ended(answer)


def _resumed(asked: Asked) -> tuple[Session, list[Plan]]:
    """Return the session and plans of an interrupted run, on its original site."""
    folder = Path(asked.options.resume)
    old = load(folder)
    if not old.plans and not old.complete:
        raise SpecError(
            "only runs of cases can be continued, and this one measures a network or faults",
            where=str(folder),
            expected="an interrupted run of cases, a recipe or a script",
            fix=old.continuation(folder),
        )
    above = folder.resolve().parents  # a copied run need not lie in RESULTS/runs/MACHINE
    usual = len(above) > 2 and above[1].name == "runs"
    asked.options.results = str(above[2] if usual else above[0])
    catalogue = options.catalogue([*old.settings.paths, *asked.options.path])
    session = measuring.session(asked, catalogue, run.where(old), old.settings)
    notes = session.run.notes
    session.resume(folder)
    session.run.notes += notes
    return session, list(session.run.plans)


def _dry_run(asked: Asked, catalogue: Catalogue, site: Site) -> Answer:
    """Return the files and commands with which an engine would start its agents.

    Nothing is started.
    """
    settings = options.engine_settings(measuring.values(asked), catalogue)
    where = Where(nodes=site.nodes, device=site.device, settings=settings)
    commands = deploy.commands(catalogue.get("engines", site.engine), where)
    lines = []
    for command in commands:
        for name, content in command.files.items():
            lines += [f"# {name}", *content.splitlines(), ""]
        lines += [f"# {command.place}"] if command.place else []
        lines.append(shlex.join(command.argv))
    return Answer(document={"commands": [to_doc(c) for c in commands]}, lines=lines)
