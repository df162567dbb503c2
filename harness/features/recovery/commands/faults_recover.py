"""The command ``faults recover``: stop training on purpose, and time its recovery."""

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.base.errors import Exit, LaunchError, SpecError
from harness.cases import CaseSpec, Catalogue, Fault, FaultScenario, Site
from harness.cases.fault_scenario import resharded
from harness.cases.script import parse, script_plan
from harness.cases.targets import case_of
from harness.features.recovery.recoverer import Recoverer, ScriptRecoverer
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.commands.network import needs_two
from harness.measure.confirming import USUAL
from harness.record import RunRecord

HELP = {
    "faults recover": "stop a training run on purpose, and time its recovery from a checkpoint",
}
EXAMPLES = {
    "faults recover": (
        "faults recover ddp/decoder-nano --cpus 2 --trials 4",
        "faults recover --script --gpus 8 -- train.py",
    ),
}


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "faults recover": (RunRecord,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments for the cases or the script, the faults, and the number of trials."""
    sub.add_argument("cases", nargs="*", metavar="CASE", help="for example ddp/decoder-nano")
    sub.add_argument(
        "--script", action="store_true", help="the user's script, unchanged: --script -- train.py"
    )
    sub.add_argument(
        "--resume-with",
        metavar="COMMAND",
        help='command that resumes a script: "train.py --resume last.pt" (default: same command)',
    )
    sub.add_argument(
        "--break-after",
        type=measuring.positive,
        default=20,
        metavar="N",
        help="optimizer updates after which a script is interrupted (default: 20)",
    )
    sub.add_argument(
        "--fresh", action="store_true", help="start the ranks of a script as new interpreters"
    )
    sub.add_argument(
        "--trials",
        type=measuring.positive,
        default=USUAL,
        metavar="N",
        help=f"trials of each fault (default: {USUAL})",
    )
    measuring.add_measuring_options(sub, "scripts", "records")


def act(asked: Asked) -> Answer:
    """Interrupt each case by a crash, a hang or a lost node, and measure how it resumes.

    Some scenarios resume on another world size. A scenario that fails for any other reason than its
    injected fault is an ERROR, and the remaining scenarios are still measured.
    """
    catalogue, site = measuring.site(asked)
    needs_two(site)
    cases = [] if asked.options.script else _cases(catalogue, site, asked)
    recoverable = [c for c in cases if catalogue.get("strategies", c.strategy).supports.recovers]
    courses = [course for case in recoverable for course in _courses(case, site, asked)]
    if asked.options.script:
        courses = _of_script(site, asked)
    broken = False
    with measuring.session(asked, catalogue, site) as session:
        session.run.notes += [
            f"SKIP {c.id}: not launched, because {c.strategy} keeps state that checkpoints do not"
            " contain"
            for c in cases
            if c not in recoverable
        ]
        recoverer = Recoverer(session)
        if asked.options.script:
            words = asked.options.resume_with or shlex.join(asked.script)
            recoverer = ScriptRecoverer(session, words, asked.options.break_after)
        for course, times in courses:
            try:
                recoverer.measure(course, times)
            except LaunchError as error:
                broken = True
                session.run.notes.append(f"ERROR {course.name}: {error.what}")
    answer = measuring.judged(session, session.save(complete=True), asked)
    return replace(answer, exit=Exit.ERROR) if broken else answer


def _of_script(site: Site, asked: Asked) -> list[tuple[FaultScenario, int]]:
    """Return the fault scenarios for a user's script on all ranks, with their numbers of trials."""
    if asked.options.cases:
        raise SpecError(
            f"{asked.options.cases[0]} cannot be used with --script",
            expected="-- train.py ARGS",
            fix="scaleproof faults recover --script --cpus 2 -- train.py ARGS",
        )
    case = script_plan(asked.script, site).arm(f"@{site.world_size}").case
    parse(shlex.split(asked.options.resume_with or case.script))
    kinds = (Fault.KILL, Fault.HANG)
    return [(FaultScenario(case=case, fault=fault), asked.options.trials) for fault in kinds]


def _cases(catalogue: Catalogue, site: Site, asked: Asked) -> list[CaseSpec]:
    """Return the requested cases, which may come from the user's files."""
    if not asked.options.cases:
        raise SpecError(
            "no case or script was given",
            expected="a case, or --script -- train.py ARGS",
            fix="scaleproof faults recover ddp/decoder-nano --cpus 2",
        )
    knobs = measuring.settings(asked)
    return [catalogue.normalise(case_of(name, site, knobs)) for name in asked.options.cases]


def _courses(case: CaseSpec, site: Site, asked: Asked) -> Iterator[tuple[FaultScenario, int]]:
    """Yield the fault scenarios for a case with their numbers of trials."""
    trials = asked.options.trials
    yield FaultScenario(case=case, fault=Fault.KILL), trials
    yield FaultScenario(case=case, fault=Fault.KILL, asynchronous=True), trials
    if len(site.nodes) == 1:
        yield from ((course, trials) for course in resharded(case))
    for fault in (Fault.HANG, *map(Fault, site.faults)):
        yield FaultScenario(case=case, fault=fault), trials
