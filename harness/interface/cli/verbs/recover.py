"""``recover``: break a training on purpose, and time how it goes on from its checkpoint."""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from harness.base.errors import Exit, LaunchError
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.cli.verbs.fabric import needs_two
from harness.measure.confirming import USUAL
from harness.measure.recoverer import Recoverer
from harness.spec import CaseSpec, Course, Fault, Site
from harness.spec.courses import resharded

HELP = dict(recover="break a training on purpose and time its recovery from a checkpoint")


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    """What to break, and how often."""
    sub.add_argument("cases", nargs="+", metavar="CASE", help="for example ddp/decoder-nano")
    sub.add_argument(
        "--trials",
        type=measuring.positive,
        default=USUAL,
        metavar="N",
        help=f"of each fault (default: {USUAL})",
    )
    measuring.add_to(sub, cases=False)


def act(asked: Asked) -> Answer:
    """Break each case and have it go on: by crash, hang and loss of nodes, in other worlds too.

    A course that breaks in another way than it was meant to is an ERROR; the others go on.
    """
    known, site = measuring.site(asked)
    knobs = measuring.settings(asked)
    cases = [known.normalise(site.case(name, knobs=knobs)) for name in asked.options.cases]
    needs_two(site)
    broken = False
    with measuring.session(asked, known, site) as session:
        recoverer = Recoverer(session)
        for course, times in (c for case in cases for c in _courses(case, site, asked)):
            try:
                recoverer.measure(course, times)
            except LaunchError as error:
                broken = True
                session.run.notes.append(f"ERROR {course.name}: {error.what}")
    answer = measuring.judged(session, session.save(complete=True), asked)
    return replace(answer, exit=Exit.ERROR) if broken else answer


def _courses(case: CaseSpec, site: Site, asked: Asked) -> Iterator[tuple[Course, int]]:
    """What is tried of a case, and how often."""
    trials = asked.options.trials
    yield Course(case=case, fault=Fault.KILL), trials
    yield Course(case=case, fault=Fault.KILL, asynchronous=True), trials
    if len(site.nodes) == 1:
        yield from ((course, 1) for course in resharded(case))
    for fault in (Fault.HANG, *map(Fault, site.faults)):
        yield Course(case=case, fault=fault), trials
