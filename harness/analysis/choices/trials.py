"""Find the terms in which a world size loses most time, and try the remedies that may help.

world size -> Loss (a large term of the time budget, with remedies)
    -> Plan (the unchanged case and the case with each remedy, in the same blocks)
    -> Tried (the gain of each remedy, with its interval)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.analysis.rungs import Rung
from harness.analysis.timeline.advice import LARGE, Remedy, of_script, remedies
from harness.cases import Arm, Catalogue, Contrast, Plan
from harness.cases.plan import Role
from harness.record import RunRecord, Term

#: Number of blocks in a trial. Each block measures two pairs of launches.
BLOCKS = 4
#: The name of the arm without a change; an arm is a case in its role in a comparison.
NOW = "as it is"


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A large term of one world size.

    ``excess_ns`` is the time by which the term is longer than under linear scaling, and ``share``
    the share of the step that this time takes. ``gain`` is the largest possible increase of the
    scaling efficiency if it is removed. ``remedies`` are changes that may reduce it, and ``change``
    is a change of a user's script, in words.
    """

    case: str
    term: Term
    excess_ns: float
    share: float
    gain: float
    remedies: tuple[Remedy, ...]
    change: str = ""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The result of a remedy: the ratio of throughputs with and without it, and its interval.

    ``alike`` says whether the training still computes the same result. ``why`` is the reason if
    nothing was measured.
    """

    case: str
    remedy: str
    alike: bool
    ratio: float | None
    low: float | None
    high: float | None
    worst: float | None
    num_pairs: int
    why: str


def losses(rung: Rung, catalogue: Catalogue) -> Iterator[Loss]:
    """Yield the terms that grew by a large share of the step, the largest first.

    Simulated compute has no remedies, because its time is configured. The remedy for a user's
    script is a change of its code.
    """
    lost = rung.losses
    for term, excess in sorted(lost.excess_ns.items(), key=lambda pair: -pair[1]):
        share = float(excess / lost.step_ns)
        if share < LARGE:
            return
        may_help: tuple[Remedy, ...] = ()
        if rung.expected is not None and not (term is Term.COMPUTE and rung.arm.case.stand_in):
            may_help = tuple(remedies(term, rung.arm.case, rung.expected, catalogue))
        yield Loss(
            case=rung.arm.case.id,
            term=term,
            excess_ns=float(excess),
            share=share,
            gain=lost.gain(term),
            remedies=may_help,
            change=of_script(term, rung.launch.ranks) if rung.arm.case.script else "",
        )


def trial(rung: Rung, changes: Sequence[Remedy]) -> Plan:
    """Return a plan that measures the unchanged case and the case with each change."""
    case = rung.arm.case
    arms = [Arm(name=NOW, case=case, role=Role.BASELINE)]
    arms += [Arm(name=change.name, case=change.of(case), role=Role.SUBJECT) for change in changes]
    contrasts = tuple(
        Contrast(
            name=f"throughput_ratio@{change.name}",
            metric="throughput_ratio",
            subject=change.name,
            baseline=(NOW,),
            against="other",
        )
        for change in changes
    )
    return Plan(
        name=f"{case.id}: what may help",
        arms=tuple(arms),
        contrasts=contrasts,
        protocol=replace(rung.plan.protocol, min_blocks=BLOCKS, max_blocks=BLOCKS),
    )


def tried(record: RunRecord, plan: Plan, changes: Sequence[Remedy]) -> list[Tried]:
    """Return the result of every change, the best first.

    Changes that slow the case down are included.
    """
    verdicts = {v.contrast: v for v in record.verdicts if v.plan == plan.hash}
    attempts = []
    for contrast, remedy in zip(plan.contrasts, changes, strict=True):
        verdict = verdicts.get(contrast.name)
        value = None if verdict is None else verdict.value
        attempts.append(
            Tried(
                case=plan.arm(NOW).case.id,
                remedy=remedy.name,
                alike=remedy.alike,
                ratio=value,
                low=None if verdict is None else verdict.low,
                high=None if verdict is None else verdict.high,
                worst=None if verdict is None else verdict.worst,
                num_pairs=0 if verdict is None else verdict.n,
                why="not measured" if verdict is None else verdict.detail if value is None else "",
            )
        )
    return sorted(attempts, key=lambda t: -(t.ratio or 0.0))
