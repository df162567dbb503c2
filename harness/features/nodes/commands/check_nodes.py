"""The command ``check nodes``: check whether nodes are fit for a job, in a prolog or by hand.

agents join -> findings and differing facts of nodes -> one correctness check over all ranks
-> one sweep of the fabric, against the references -> fit (0), unfit (1), or unknown in time (10)
"""

import argparse
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypedDict

from harness.analysis.judging import blockers, verdicts
from harness.analysis.nodes import Examined, drift
from harness.base.documents import to_doc
from harness.base.errors import Exit, LaunchError
from harness.cases import CaseSpec, Site
from harness.cases.recipes import gated
from harness.cases.targets import case_of
from harness.features.nodes.checking import STEPS, check_bits
from harness.host.admission import Level
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.measure.measurer import Measurer
from harness.measure.session import Session
from harness.measure.sweeper import Sweeper

HELP = {
    "check nodes": "check within seconds whether these nodes are fit for a job (for a prolog)",
}
EXAMPLES = {
    "check nodes": (
        "check nodes --cpus 2 --check-bits",
        "check nodes --engine slurm --nodes 64x8 --gpus 512 --within 90s",
    ),
}
#: The case that is trained for a step by default: small, and all ranks communicate.
CASE = "ddp/decoder-nano"


class GateRow(TypedDict):
    check: str
    level: str
    told: str


class Gated(TypedDict):
    fit: str
    seconds: float
    late: str
    run: str
    checks: Sequence[GateRow]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "check nodes": (Gated,),
}


class LateError(Exception):
    """Raised when the time of ``--within`` has passed."""


@dataclass
class Fitness:
    """The results of the checks so far: rows of check, level and sentence."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, check: str, problems: list[str], sentence: str) -> None:
        """Add a finished check with its problems, or with ``sentence`` if there are none."""
        self.rows += [(check, "BAD", problem) for problem in problems]
        self.rows += [] if problems else [(check, "ok", sentence)]

    @property
    def unfit(self) -> bool:
        return any(level == "BAD" for _, level, _ in self.rows)


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    measuring.add_measuring_options(sub, "records")
    sub.add_argument(
        "--within", default="90s", metavar="T", help="time limit: 90s, 2m (default: 90s)"
    )
    sub.add_argument("--case", default=CASE, help=f"the case to train for a step (default: {CASE})")
    sub.add_argument(
        "--check-bits",
        type=measuring.positive,
        nargs="?",
        const=STEPS,
        default=0,
        metavar="STEPS",
        help="also compare the results of all ranks on the same batches bit for bit (default:"
        f" {STEPS} steps)",
    )


def act(asked: Asked) -> Answer:
    """Make the checks until one fails, all are done, or the time limit has passed."""
    catalogue, site = measuring.site(asked)
    within_s = options.seconds(asked.options.within, "within") or 0.0
    case = catalogue.normalise(case_of(asked.options.case, site, measuring.settings(asked)))
    fitness = Fitness()
    began = time.monotonic()
    late = ""
    # The session must not sweep the fabric first: the last check does so.
    asked.options.no_fabric = asked.options.no_timeline = True
    session = measuring.session(asked, catalogue, site)
    try:
        with _ended_after(within_s), session:
            _look(session, site, case, fitness)
            if asked.options.check_bits and not fitness.unfit:
                fitness.add("bits", *_bits(session, case, asked.options.check_bits))
    except LateError:
        late = f"not finished within {within_s:g} s"
    except LaunchError as error:
        fitness.add("launch", [error.what], "")
    record = session.save(complete=True)
    took_s = time.monotonic() - began
    exit_ = Exit.FAILED if fitness.unfit else Exit.INCONCLUSIVE if late else Exit.PASSED
    word = {Exit.FAILED: "UNFIT", Exit.INCONCLUSIVE: "UNKNOWN"}.get(exit_, "FIT")
    lines = [f" {level:<4}  {check:<8}  {finding}" for check, level, finding in fitness.rows]
    nodes = "1 node" if len(site.nodes) == 1 else f"{len(site.nodes)} nodes"
    ranks = f"{nodes}, {site.world_size} rank{'s' * (site.world_size > 1)}"
    lines.append(f" {word}: {ranks}, after {took_s:.0f} s{f' ({late})' if late else ''}")
    document = {
        "fit": word,
        "seconds": took_s,
        "late": late,
        "run": record.run,
        "checks": [dict(zip(("check", "level", "told"), row, strict=True)) for row in fitness.rows],
    }
    return Answer(document=to_doc(document), lines=lines, exit=exit_)


def _look(session: Session, site: Site, case: CaseSpec, fitness: Fitness) -> None:
    """Make every check, the quick ones first."""
    session.ready()
    fitness.add("nodes", *_nodes(session))
    fitness.add("step", *_step(session, case))
    if site.world_size > 1 and not fitness.unfit:
        Sweeper(session).sweep(site, {}, 1)
        fitness.add("fabric", *_fabric(session))


def _nodes(session: Session) -> tuple[list[str], str]:
    """Return the problems and differences that agents find on their nodes, and a summary."""
    examined = [
        Examined.of(node.machine.host, answer) for node, answer in session.bench.worlds.examine()
    ]
    bad = [
        f"{node.host}: {finding.check}: {finding.text}"
        for node in examined
        for finding in node.findings
        if finding.level is Level.BAD
    ]
    for unlike in drift(examined):
        bad += [
            f"{host}: {unlike.fact} is {v}, but {unlike.usual} on most nodes"
            for host, v in unlike.others
        ]
    return bad, f"{len(examined)} identical, no problems"


def _step(session: Session, case: CaseSpec) -> tuple[list[str], str]:
    """Return the failure of one correctness check over all ranks, and a summary."""
    plan = gated(case)
    Measurer(session).measure([plan])
    gate = session.run.bare().gates.get(case.hash)
    if gate is None:
        described = session.run.described[case.hash]
        return [described.refused or "its correctness check was not launched"], ""
    if (reason := blockers.gate_failure(gate)) is not None:
        return [reason], ""
    return (
        [],
        f"{case.id}: {sum(len(rank.checks) for rank in gate.ranks)} checks of its training pass",
    )


def _bits(session: Session, case: CaseSpec, steps: int) -> tuple[list[str], str]:
    """Return the ranks whose results differ in any bit from other ranks' results, and a summary."""
    launch = check_bits(session, case, steps)
    if launch.cause is not None:
        return [f"rank {launch.cause.rank}: {launch.cause.message}"], ""
    alone = case.world_size == 1
    with_whom = "with itself" if alone else "between ranks"
    return [*launch.wrong], f"{launch.compared:,} hashes of {steps} steps are equal {with_whom}"


def _fabric(session: Session) -> tuple[list[str], str]:
    """Return wrong results and missed references of one sweep, and a summary."""
    run = session.run.bare()
    rules = {rule.name: rule for rule in run.thresholds}
    judged = verdicts.of_series(run)
    wrong = sorted(
        {f"{verdict.case}: {verdict.detail}" for verdict in judged if verdict.status == "ERROR"}
    )
    unmeasured = [verdict for verdict in judged if verdict.rule and verdict.value is None]
    unknown = [f"{verdict.case}: {verdict.metric} was not measured" for verdict in unmeasured]
    if not run.fabric:
        unknown.append("no collective was timed")
    slow = [
        f"{verdict.case}: {verdict.metric} is {verdict.value:.3g}, but the threshold is"
        f" {verdict.bound} ({verdict.rule})"
        for verdict in judged
        if verdict.rule
        and verdict.value is not None
        and rules[verdict.rule].missed_by(verdict.value)
    ]
    asked = sum(verdict.rule is not None for verdict in judged)
    against = f"{asked} references are met" if asked else "no reference for this machine"
    operations = {row.operation for row in run.fabric}
    return [*wrong, *unknown, *slow], f"{len(operations)} collectives correct; {against}"


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise LateError in the body of the context after this time, even while the body waits."""

    def late(number: int, frame: FrameType | None) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
