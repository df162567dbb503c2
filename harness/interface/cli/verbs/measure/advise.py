"""``advise``: what a run lost most of its time to, and what may help; --try measures that."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.rungs import Rung, rungs
from harness.analysis.timeline.advice import LARGE
from harness.analysis.timeline.losses import WORDS
from harness.analysis.timeline.remedies import Remedy, remedies
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, SpecError
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.interface.report.live import Live
from harness.interface.report.text import Column, rule, table, wrap
from harness.measure.measurer import Measurer
from harness.measure.session import Session
from harness.record import RunRecord, Status, Term, Verdict
from harness.record.store import load
from harness.spec import Arm, Catalogue, Contrast, Plan
from harness.spec.plan import Role

HELP = dict(advise="tell what a run lost its time to and what may help; --try measures it")
EXAMPLES = dict(
    advise=(
        "advise RUN",
        "advise RUN --try --case fsdp",
    ),
)
#: Blocks of a trial: two pairs of launches each.
BLOCKS = 4
NOW = "as it is"


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("run", type=Path)
    sub.add_argument("--case", default="", metavar="TEXT", help="only cases whose name has this")
    sub.add_argument(
        "--try", action="store_true", dest="trying",
        help="measure every remedy beside the case as it is, in the same blocks",
    )  # fmt: skip
    sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A large term of one rung: ns that it grew by, what it would give back, and what may help."""

    case: str
    term: Term
    excess_ns: float
    share: float
    gain: float
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One remedy beside the case as it is: the ratio of throughputs with its interval."""

    case: str
    remedy: str
    alike: bool
    ratio: float | None
    low: float | None
    high: float | None
    worst: float | None
    num_pairs: int
    why: str


def act(asked: Asked) -> Answer:
    said = asked.options
    run = load(said.run)
    known = options.catalogue(list(run.settings.paths))
    every = [r for r in rungs(run) if said.case in r.arm.case.id]
    found = [r for r in every if not r.refused]
    if every and not found:
        raise SpecError(
            f"the profile of {every[0].arm.case.id} is not trusted: its steps take"
            f" {every[0].perturbation:.2f}x as long as others", where=str(said.run),
            expected="a profile without operators, or longer steps",
            fix=f"scaleproof run {every[0].arm.case.family}",
        )  # fmt: skip
    if not found:
        named = f" has {said.case!r} in its name" if said.case else ""
        raise SpecError(
            f"no profiled rung in this run{named}",
            where=str(said.run), expected="a ladder measured with its timeline",
            fix=f"scaleproof report {said.run}",
        )  # fmt: skip
    losses = [loss for rung in found for loss in _losses(rung, known)]
    lines = _told(losses, text.columns())
    document: dict[str, Json] = {"losses": to_doc(tuple(losses)), "tried": []}
    if not said.trying:
        if any(loss.remedies for loss in losses):
            lines.append(f" measure them  scaleproof advise {said.run} --try")
        return Answer(document=document, lines=lines)
    record, tried, folder = _try(asked, run, found, losses, known)
    document |= {"tried": to_doc(tuple(tried)), "run": str(folder)}
    lines += ["", *_outcome(tried, text.columns())]
    lines.append(f" report   scaleproof report {text.shown(folder)}")
    failed = any(v.status is Status.ERROR for v in record.verdicts)
    return Answer(document=document, lines=lines, exit=Exit.ERROR if failed else Exit.PASSED)


def _losses(rung: Rung, known: Catalogue) -> Iterator[Loss]:
    """The terms that grew by a large share of the step, the largest first."""
    losses = rung.losses
    for term, excess in sorted(losses.excess_ns.items(), key=lambda pair: -pair[1]):
        share = float(excess / losses.step_ns)
        if share < LARGE:
            return
        may_help = (
            () if rung.expected is None or (term is Term.COMPUTE and rung.arm.case.stand_in)
            else tuple(remedies(term, rung.arm.case, rung.expected, known))
        )  # fmt: skip
        yield Loss(
            case=rung.arm.case.id, term=term, excess_ns=float(excess), share=share,
            gain=losses.gain(term), remedies=may_help,
        )  # fmt: skip


def _told(losses: Sequence[Loss], width: int) -> list[str]:
    if not losses:
        return [f" no part of a step grew by {LARGE:.0%} of it or more: there is nothing to advise"]
    names = dict.fromkeys(loss.case for loss in losses)
    firsts = {id(next(x for x in losses if x.case == name)) for name in names}
    columns = [
        Column[Loss]("case", 5, lambda x: x.case if id(x) in firsts else "", left=True),
        Column("lost to", 9, lambda x: WORDS[x.term], left=True),
        Column("ms a step", 8, lambda x: f"{x.excess_ns / 1e6:.2f}"),
        Column("of the step", 7, lambda x: f"{x.share:.1%}"),
        Column("gives back", 9, lambda x: f"+{x.gain:.3f}"),
        Column("may help", 10, _named, left=True),
    ]
    note = " gives back = efficiency without all of that growth: no remedy can do more"
    return [*table(columns, losses, width), *wrap(note, width, 1)]


def _named(loss: Loss) -> str:
    return "\n".join(remedy.name for remedy in loss.remedies) or "-"


def _try(
    asked: Asked, run: RunRecord, found: Sequence[Rung], losses: Sequence[Loss], known: Catalogue
) -> tuple[RunRecord, list[Tried], Path]:
    """A plan for each rung: the case as it is, and every remedy, in the same blocks."""
    plans = [plan for rung in found if (plan := _plan(rung, losses)) is not None]
    if not plans:
        raise SpecError(
            "there is no remedy to try", where=str(asked.options.run),
            expected="a large term that a setting changes", fix="scaleproof doctor",
        )  # fmt: skip
    settings = replace(
        run.settings, timeline=False, fabric=False, argv=("scaleproof", *asked.words),
        budget_s=None, nonce="",
    )  # fmt: skip
    session = Session(known, settings, asked.options.results, (), Live(sys.stderr))
    session.run.announce(plans)
    measurer = Measurer(session)
    with session:
        measurer.measure(plans)
    record = session.save(complete=True)
    named = {r.name: r for loss in losses for r in loss.remedies}
    tried = []
    for plan in plans:
        case = next(a.case.id for a in plan.arms if a.name == NOW)
        for contrast in plan.contrasts:
            verdict = next(
                (v for v in record.verdicts if (v.plan, v.contrast) == (plan.hash, contrast.name)),
                None,
            )
            tried.append(_tried(case, named[contrast.subject], verdict))
    return record, tried, session.run.folder


def _plan(rung: Rung, losses: Sequence[Loss]) -> Plan | None:
    of_rung = [loss for loss in losses if loss.case == rung.arm.case.id]
    changes: dict[str, Remedy] = {r.name: r for loss in of_rung for r in loss.remedies}
    if not changes:
        return None
    arms = [Arm(name=NOW, case=rung.arm.case, role=Role.BASELINE)]
    arms += [
        Arm(name=name, case=r.of(rung.arm.case), role=Role.SUBJECT) for name, r in changes.items()
    ]
    contrasts = tuple(
        Contrast(
            name=f"throughput_ratio@{name}", metric="throughput_ratio", subject=name,
            baseline=(NOW,), against="other",
        )
        for name in changes
    )  # fmt: skip
    protocol = replace(rung.plan.protocol, min_blocks=BLOCKS, max_blocks=BLOCKS)
    name = f"{rung.arm.case.id}: what may help"
    return Plan(name=name, arms=tuple(arms), contrasts=contrasts, protocol=protocol)


def _tried(case: str, remedy: Remedy, v: Verdict | None) -> Tried:
    value = None if v is None else v.value
    return Tried(
        case=case, remedy=remedy.name, alike=remedy.alike, ratio=value,
        low=None if v is None else v.low, high=None if v is None else v.high,
        worst=None if v is None else v.worst, num_pairs=0 if v is None else v.n,
        why="not measured" if v is None else v.detail if value is None else "",
    )  # fmt: skip


def _outcome(tried: Sequence[Tried], width: int) -> list[str]:
    """The best first; what made it slower stands there as well."""
    ranked = sorted(tried, key=lambda t: -(t.ratio or 0.0))
    columns = [
        Column[Tried]("tried", 10, lambda t: t.remedy + ("" if t.alike else " *"), left=True),
        Column("gain [95%]", 9, _gain, left=True),
        Column("worst pair", 6, lambda t: "" if t.worst is None else f"{t.worst - 1:+.1%}"),
        Column("pairs", 4, lambda t: str(t.num_pairs or "")),
        Column("", 8, _reads, left=True),
    ]
    out = [rule("measured beside the case as it is, in the same blocks", width)]
    for case in dict.fromkeys(t.case for t in ranked):
        out += [f" {case}", *table(columns, [t for t in ranked if t.case == case], width)]
    notes = " gain = samples a second against the case as it is"
    if any(not t.alike for t in tried):
        notes += "; * trains otherwise: another batch, or gradients that lost something"
    return [*out, *wrap(notes, width, 1)]


def _gain(t: Tried) -> str:
    if t.ratio is None:
        return "n/a"
    span = "" if t.low is None or t.high is None else f" [{t.low - 1:+.1%}, {t.high - 1:+.1%}]"
    return f"{t.ratio - 1:+.1%}{span}"


def _reads(t: Tried) -> str:
    if t.ratio is None:
        return t.why
    if t.low is not None and t.low > 1:
        return "faster"
    if t.high is not None and t.high < 1:
        return "SLOWER"
    return "no difference to be seen"
