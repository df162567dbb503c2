"""Print time budgets: the losses at each world size, their causes, and possible remedies."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial

from harness.analysis.judging.caveats import PERTURBED
from harness.analysis.results import results_of
from harness.analysis.rungs import Rung, rungs
from harness.analysis.timeline.advice import advice, starved
from harness.interface.report import figures, text
from harness.interface.report.text import Column, rule, table, wrap
from harness.record import RunRecord, Term
from harness.record.budget import EXPOSED, OUTLINE

#: The names of terms in column headers.
TERMS = {
    Term.COMPUTE: "compute",
    Term.MOVE: "copies",
    Term.TRANSFER: "transfer",
    Term.WAIT: "wait",
    Term.BUBBLE: "bubble",
    Term.UNDIVIDED: "comm",
    Term.DATA: "data",
    Term.LAUNCH: "launch",
    Term.IDLE: "idle",
    Term.OTHER: "queued",
}
#: Terms of communication and copies that compute does not hide; their columns have a star.
_EXPOSED = (*EXPOSED, Term.MOVE)
#: Meaning of the star at such a column.
STARRED = "* not hidden behind compute"


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """Return the table of losses and remarks on it, or no lines if nothing was profiled."""
    all_rungs = rungs(run)
    if not all_rungs:
        return []
    trusted = [rung for rung in all_rungs if not rung.refused]
    shown = [rule("where the efficiency went, ms per step", width)]
    if trusted:
        shown += _table(trusted, width)
        note = (
            " lost = step - ideal = the sum of the columns to its right; each of these columns is"
            f" the growth of a term relative to the baseline ({STARRED})"
        )
        if "ranks lost" in shown[1]:
            note += "; ranks lost = ranks minus the speedup of these profiled steps"
        shown += wrap(note, width, 1)
        shown += _captured(trusted, width)
    return [*shown, *remarks(run, width), ""]


def _captured(trusted: Sequence[Rung], width: int) -> list[str]:
    """Return how the profiles were made, and which of them may have changed the step time."""
    shown = []
    outlines = [rung for rung in trusted if rung.budget.capture == OUTLINE]
    if outlines:
        some = "" if len(outlines) == len(trusted) else f" of {len(outlines)} world sizes"
        shown += wrap(
            f" outline  profiles{some} without operators: all time in which a rank neither waits"
            " nor loads data counts as compute, including Python code (--operators records each"
            " operator)",
            width,
            10,
        )
    if doubtful := [rung for rung in trusted if rung.doubtful]:
        names = ", ".join(f"{rung.arm.case.id} {rung.perturbation:.2f}x" for rung in doubtful)
        shown += wrap(
            f" caution  profiled steps may take over {PERTURBED}x as long as other steps: {names}",
            width,
            10,
        )
    return shown


def remarks(run: RunRecord, width: int) -> list[str]:
    """Return remarks on bubbles, both estimates of communication, remedies, refused profiles."""
    all_rungs = rungs(run)
    shown = [line for rung in all_rungs if not rung.refused for line in of_rung(run, rung, width)]
    refused = [rung for rung in all_rungs if rung.refused]
    if refused:
        worst = max(refused, key=lambda rung: rung.perturbation)
        names = ", ".join(rung.arm.case.id for rung in refused)
        stages = all(rung.expected is None or rung.expected.stages > 1 for rung in refused)
        longer = (
            ""
            if any(rung.arm.case.script for rung in refused)
            else " (--set micro_batch=..., a larger size)"
        )
        shown += wrap(
            f" refused  {names}: profiled steps take up to {worst.perturbation:.2f}x as long"
            f" as unprofiled ones (limit {PERTURBED}), so the profile is not trusted; use longer"
            f" steps{longer}" + ("" if stages else ", or --ablate communication"),
            width,
            10,
        )
    return shown


def of_rung(run: RunRecord, r: Rung, width: int, *, named: bool = True) -> Iterator[str]:
    """Yield the remarks on one profile.

    If its steps take another time than the timed steps, yield only a remark on this difference.
    """
    name = f"{r.arm.case.id}: " if named else ""
    if r.apart:
        yield from wrap(f" apart    {name}{unexplained(r)} ms", width, 10)
        return
    share = 1.0 if r.expected is None else r.expected.ideal_efficiency
    budget = r.budget
    if (bubble := budget.mean_ns(Term.BUBBLE)) and share < 1:
        ideal = (1 - share) * budget.step_ns
        yield from wrap(
            f" bubble   {name}{bubble / 1e6:.1f} ms, {ideal / 1e6:.1f} by the schedule; stage"
            f" imbalance {budget.imbalance:.2f} (max / mean compute)",
            width,
            10,
        )
    scaling = r.losses.compute_scaling
    if scaling is not None and len(budget.ranks) > 1:
        product = budget.load_balance * budget.communication_efficiency * scaling
        yield from wrap(
            f" pop      {name}load balance {budget.load_balance:.3f} x communication efficiency"
            f" {budget.communication_efficiency:.3f} x computation scaling {scaling:.3f} ="
            f" {product:.3f}, the share of rank time that is the baseline's computation",
            width,
            10,
        )
    if stall := starved(r.arm.case, budget, r.launch.fed):
        yield from wrap(f" data     {name}{stall}", width, 10)
    for remedy in advice(r.arm.case, r.expected, r.losses, budget, run.settings, r.launch):
        yield from wrap(f" try      {name}{remedy}", width, 10)
    yield from _both(run, r, width, name)


def unexplained(r: Rung) -> str:
    """Return by how much the profiled step differs from the timed step."""
    step_ms = float(r.losses.step_ns) / 1e6
    timed_ms = (r.timed_ns or 0.0) / 1e6
    return f"not explained: profiled steps took {step_ms:.1f} ms, timed ones {timed_ms:.1f} ms"


#: The widest interval of an ablation that is compared, as a share of the step. A wider interval
#: is consistent with any value.
WIDEST_ABLATION = 0.2


def _both(run: RunRecord, r: Rung, width: int, name: str) -> Iterator[str]:
    """Compare the cost of communication by the trace with its cost by ablation."""
    for result in results_of(run, r.plan.hash):
        if result.metric != "communication_cost" or result.low is None or result.high is None:
            continue
        exposed_share = r.budget.exposed_share
        slack = (r.budget.clock_ns or 0) / r.budget.step_ns
        if result.high - result.low > WIDEST_ABLATION:
            reading = "the ablation is inconclusive, its interval is too wide"
        elif result.low - slack <= exposed_share <= result.high + slack:
            reading = "they agree"
        else:
            reading = (
                "they disagree (the ablation also removes the slowdown of compute by communication)"
            )
        yield from wrap(
            f" both     {name}exposed communication is {exposed_share:.1%} of the step by its"
            f" trace, {figures.figure(result, '.1%')} by ablation: {reading}",
            width,
            10,
        )


def _table(trusted: Sequence[Rung], width: int) -> list[str]:
    """Return the table with as many terms as fit; one column has the sum of all other terms.

    If names leave too little width for all terms, the names get separate lines.
    """
    shown = [term for term in TERMS if any(_ms(rung, term) for rung in trusted)]
    lines, rest = _fitting(trusted, shown, width, first=0)
    if not rest:
        return lines
    (header, *rows), _ = _fitting(trusted, shown, width - 2, first=1)
    names = [wrap(f" {text.named(rung.arm.case)}".replace("\n", ""), width, 3) for rung in trusted]
    under = [[*name, f"  {row}"] for name, row in zip(names, rows, strict=True)]
    return [f"  {header}", *(line for pair in under for line in pair)]


def _fitting(
    trusted: Sequence[Rung], shown: Sequence[Term], width: int, first: int
) -> tuple[list[str], list[Term]]:
    """Return the table from its column ``first`` on, and the terms without a column."""
    ranked = sorted(shown, key=lambda term: -max(abs(_ms(rung, term)) for rung in trusted))
    for count in range(len(shown), -1, -1):
        fitting = [term for term in shown if term in ranked[:count]]
        rest = ranked[count:]
        lines = table(_columns(fitting, rest)[first:], trusted, width)
        if {*map(head, fitting), *(["rest"] if rest else [])} <= set(lines[0].split()):
            break
    return lines, rest


def _columns(kept: Sequence[Term], rest: Sequence[Term]) -> list[Column[Rung]]:
    return [
        Column[Rung]("case", 100, lambda r: text.named(r.arm.case), left=True),
        Column("ranks", 99, lambda r: r.arm.case.world),
        Column("ideal", 70, lambda r: f"{float(r.losses.ideal_ns) / 1e6:.1f}"),
        Column("step", 98, lambda r: f"{float(r.losses.step_ns) / 1e6:.1f}"),
        Column("lost", 97, lambda r: f"{float(r.losses.step_ns - r.losses.ideal_ns) / 1e6:.1f}"),
        *(Column(head(term), 80, partial(_cell, term=term)) for term in kept),
        *([Column[Rung]("rest", 80, partial(_rest, terms=rest))] if rest else ()),
        Column(
            "ranks lost",
            60,
            lambda r: f"{float(r.losses.ranks - r.losses.speedup):.2f} of {r.losses.ranks}",
        ),
        Column("profiled", 50, lambda r: f"{r.perturbation:.2f}x"),
    ]


def _rest(r: Rung, terms: Sequence[Term]) -> str:
    """Return the sum of these terms in ms."""
    excess = sum((r.losses.excess_ns.get(term, Fraction(0)) for term in terms), Fraction(0))
    return f"{float(excess / 10**6):.1f}"


def head(term: Term) -> str:
    """Return the header of a term's column. A star marks time that compute does not hide."""
    return TERMS[term] + ("*" if term in _EXPOSED else "")


def _cell(r: Rung, term: Term) -> str:
    return f"{_ms(r, term):.1f}"


def _ms(r: Rung, term: Term) -> float:
    return float(round(r.losses.excess_ns.get(term, Fraction(0)) / 10**6, 1))
