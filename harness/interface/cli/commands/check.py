"""The commands ``check`` (problems of this machine) and ``jobs attach`` (a job's activity)."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

from harness.analysis.nodes import Drift, Examined, drift
from harness.analysis.stacks import Activity, Frame, tally
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases import Catalogue, Entry, Site
from harness.host import admission, doctor, machine, ranks
from harness.host.admission import Finding, Level
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.launch.engine import make

HELP = {
    "check": "check this machine for what would spoil a measurement (read only)",
    "jobs attach": "show what the ranks of a job on this machine are doing (read only)",
}
EXAMPLES = {
    "check": (
        "check",
        "check --engine slurm --nodes 8x8 --json",
    ),
    "jobs attach": (
        "jobs attach 12345",
        "jobs attach 12345 --seconds 20",
    ),
}
#: Seconds between two samples of a job's stacks.
PAUSE_S = 0.2
#: Further seconds of sampling if the stack of a rank could not be read so far.
PATIENCE_S = 5.0


class SeenRank(TypedDict):
    pid: int
    rank: int
    world_size: int
    cores: float
    activity: Activity | None


class Attached(TypedDict):
    ranks: Sequence[SeenRank]


class Examination(TypedDict):
    checks: Sequence[Finding]
    facts: Mapping[str, str]


class Nodes(TypedDict):
    nodes: Sequence[Examined]
    drift: Sequence[Drift]


#: The beginning of the finding for an engine that can be used.
HERE = "here"
#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "jobs attach": (Attached,),
    "check": (Examination, Nodes),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add an engine and its nodes to ``check``, and a job to ``jobs attach``."""
    if command == "check":
        measuring.add_measuring_options(sub)
    if command == "jobs attach":
        sub.add_argument(
            "pid",
            type=measuring.positive,
            metavar="PID",
            help="process id of the job's launcher or of one of its ranks",
        )
        sub.add_argument(
            "--seconds",
            type=measuring.positive,
            default=5,
            metavar="S",
            help="seconds to sample the job (default: 5)",
        )


def act(asked: Asked) -> Answer:
    """Return a line for each check, or for each rank of a job."""
    if asked.command == "jobs attach":
        return _attach(asked)
    catalogue, site = measuring.site(asked)
    several = len(site.nodes) > 1 or catalogue.get("engines", site.engine).engine.remote
    return _nodes(asked, catalogue, site) if several else _doctor()


def _nodes(asked: Asked, catalogue: Catalogue, site: Site) -> Answer:
    """Return the findings of every node, then the facts in which the nodes differ."""
    with measuring.session(asked, catalogue, site) as session:
        session.ready()
        answers = session.bench.worlds.examine()
    if not answers:
        raise SpecError(
            f"--engine {site.engine} cannot examine its nodes, because it starts no agents on them",
            expected="an engine that starts agents",
            fix="scaleproof check --engine slurm",
        )
    examined = [Examined.of(node.machine.host, answer) for node, answer in answers]
    drifts = list(drift(examined))
    lines = [*_found(examined, text.columns()), *_drifted(drifts, text.columns())]
    bad = [finding for node in examined for finding in node.findings if finding.level is Level.BAD]
    alike = f"{len(drifts)} facts are not" if drifts else "all facts are"
    lines.append(
        f" {len(examined)} nodes, {len(examined[0].facts)} facts each: {alike} identical;"
        f" {len(bad)} problems"
    )
    broken = any(finding.check in {c.check for c in doctor.examine()} for finding in bad)
    exit_ = Exit.FAILED if drifts or broken else Exit.INCONCLUSIVE if bad else Exit.PASSED
    document = {"nodes": to_doc(tuple(examined)), "drift": to_doc(tuple(drifts))}
    return Answer(document=document, lines=lines, exit=exit_)


def _found(examined: Sequence[Examined], width: int) -> Iterator[str]:
    """Yield each problem with the nodes that have it."""
    hosts_of: dict[Finding, list[str]] = {}
    for node in examined:
        for finding in node.findings:
            if finding.level is not Level.OK:
                hosts_of.setdefault(replace(finding, device=None), []).append(node.host)
    for problem, hosts in hosts_of.items():
        where = f"all {len(hosts)} nodes" if len(hosts) == len(examined) else ", ".join(hosts)
        sentence = f" {problem.level:<4}  {problem.check}: {problem.text} on {where}"
        yield from text.wrap(sentence, width, 7)
        yield from text.wrap(f"       try: {problem.advice}", width, 12) if problem.advice else ()


def _drifted(drifts: Sequence[Drift], width: int) -> Iterator[str]:
    """Yield each fact in which the nodes differ, with its values."""
    if drifts:
        yield from ("", text.rule("differences between nodes", width))
    for drifted in drifts:
        yield from text.wrap(f" {drifted.fact}: {drifted.usual} on most nodes", width, 4)
        for host, value in drifted.others:
            yield from text.wrap(f"    {host}: {value}", width, 8)


def _doctor() -> Answer:
    installed = doctor.examine()
    host = admission.examine()
    of_engines = engines(Catalogue().entries["engines"])
    checks = [*installed, *host, *of_engines]
    here = [finding for finding in of_engines if finding.text.startswith(HERE)]
    names = ", ".join(
        finding.text.replace(HERE, finding.check.removeprefix("engine "), 1) for finding in here
    )
    shown = [check for check in checks if check not in here]
    shown.append(Finding(check="engines", level=Level.OK, text=names))
    wide = max(len(check.check) for check in shown)
    lines = []
    for check in shown:
        finding = [f" {check.level:<4}  {check.check:<{wide}}  {check.text}"]
        finding += [f"       {'':<{wide}}  try: {check.advice}"] if check.advice else []
        lines += [part for line in finding for part in text.wrap(line, text.columns(), wide + 9)]
    broken = sum(check.level is Level.BAD for check in installed)
    unfit = sum(check.level is Level.BAD for check in host)
    warned = sum(check.level is Level.WARN for check in checks)
    problems = f"{broken + unfit} problem{'s' * (broken + unfit != 1)}"
    lines.append(f" {len(checks)} checks, {warned} warnings, {problems}")
    if unfit:
        lines.append(" a run at this time would be INCONCLUSIVE: noisy host")
    exit_ = Exit.FAILED if broken else Exit.INCONCLUSIVE if unfit else Exit.PASSED
    document = {"checks": to_doc(tuple(checks)), "facts": machine.facts()}
    return Answer(document=document, lines=lines, exit=exit_)


def engines(known: Mapping[str, Entry]) -> list[Finding]:
    """Return a finding for each engine: its version, or why it cannot be used here."""
    findings = []
    for name, entry in known.items():
        capabilities = make(entry).probe()
        state = (
            f"{HERE} {capabilities.version}".strip()
            if capabilities.available
            else f"not here: {capabilities.reason}"
        )
        findings.append(Finding(check=f"engine {name}", level=Level.OK, text=state))
    return findings


def _attach(asked: Asked) -> Answer:
    """Sample the stack of every rank repeatedly, and return the activities of each rank."""
    program = ranks.spy()
    job = ranks.of_job(asked.options.pid)
    seen: dict[int, list[Sequence[Frame]]] = {process.rank: [] for process in job}
    began = time.monotonic()
    cpu = {process.rank: ranks.cpu_s(process.pid) for process in job}
    asked_s: float = asked.options.seconds
    while (gone := time.monotonic() - began) < asked_s + PATIENCE_S:
        if gone >= asked_s and all(seen.values()):
            break  # sampling continues until each rank has a sample: on a busy machine many fail
        for rank in job:
            if stack := ranks.main_stack(program, rank.pid):
                seen[rank.rank].append([Frame(*frame) for frame in stack])
        time.sleep(PAUSE_S)
    lasted = time.monotonic() - began
    used = {
        process.rank: (ranks.cpu_s(process.pid) - cpu[process.rank]) / lasted for process in job
    }
    tallies = {rank: tally(stacks) for rank, stacks in seen.items() if stacks}
    documents = [
        {
            **to_doc(process),
            "cores": used[process.rank],
            "activity": to_doc(tallies.get(process.rank)),
        }
        for process in job
    ]
    return Answer(document={"ranks": documents}, lines=_seen(job, tallies, used))


def _seen(
    job: Sequence[ranks.RankProcess], activities: Mapping[int, Activity], used: Mapping[int, float]
) -> list[str]:
    def share(rank: ranks.RankProcess, name: str) -> str:
        here = activities.get(rank.rank)
        return "" if here is None else f"{here.seen.get(name, 0) / here.count:.0%}"

    columns = [
        text.Column[ranks.RankProcess]("rank", 9, lambda process: str(process.rank)),
        text.Column("pid", 5, lambda r: str(r.pid)),
        text.Column("cores", 7, lambda r: f"{used[r.rank]:.2f}"),
    ]
    names = dict.fromkeys(name for activity in activities.values() for name in activity.seen)
    columns += [text.Column(name, 6, partial(share, name=name)) for name in names]
    shown = text.table(columns, job, text.columns())
    if (missing := job[0].world_size - len(job)) > 0:
        shown.append(f" {missing} more ranks run on other machines")
    for rank, looks in activities.items():
        lines = ", ".join(f"{line} ({n}x)" for line, n in looks.lines.items() if line)
        message = f" rank {rank}   {looks.count} samples: {lines or 'no line of user code'}"
        shown += text.wrap(message, text.columns(), 8)
    return [*shown, " in % of the samples of each rank's main thread; this is no verdict"]
