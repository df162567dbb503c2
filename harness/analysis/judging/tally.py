"""Tally: how many requirements hold. One count for the terminal, the page and every document.

A requirement is a rule at one world size: what a line of the table, and an item of pytest, judges.
A control that was caught is none: it is no evidence that anything scales.
"""

from dataclasses import dataclass

from harness.cases import StandIn
from harness.record import Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY


@dataclass(frozen=True, kw_only=True)
class Tally:
    """``hold`` passed, ``failed`` are FAIL and not waived, ``recorded`` had only a provisional
    bound, or one of another setup; ``stand_ins`` of all say nothing of hardware. ``beside`` are
    cases that no rule judges, and that are wrong all the same.
    """

    total: int
    hold: int
    failed: int
    errors: int
    undecided: int
    waived: int
    recorded: int
    stand_ins: int
    controls: int
    beside: int = 0

    def __str__(self) -> str:
        """``9 of 11 requirements hold, 2 undecided (6 of the 11 are of stand-ins)``"""
        noun = "requirement" if self.total == 1 else "requirements"
        parts = [f"{self.hold} of {self.total} {noun} hold{'s' if self.total == 1 else ''}"]
        for count, word in (
            (self.errors, "wrong"),
            (self.failed, "failed"),
            (self.undecided, "undecided"),
            (self.waived, "waived"),
            (self.recorded, "without a bound that can pass"),
            (self.beside, "beside them wrong"),
        ):
            parts += [f"{count} {word}"] if count else []
        apart = ""
        if self.stand_ins:
            of_all = "all" if self.stand_ins == self.total else f"{self.stand_ins}"
            whole = "" if len(parts) == 1 or of_all == "all" else f" of the {self.total} are"
            apart = f" ({of_all}{whole} of stand-ins)"
        return ", ".join(parts) + apart


def requirements(run: RunRecord) -> list[Verdict]:
    """The verdicts that count, worst first."""
    judged = [
        verdict
        for verdict in run.verdicts
        if verdict.rule and verdict.reason is not Reason.CAUGHT and not verdict.simulated
    ]
    judged = [verdict for verdict in judged if verdict.status is not Status.SKIP]
    return sorted(judged, key=lambda verdict: SEVERITY.index(verdict.counts))


def wrong(run: RunRecord) -> list[Verdict]:
    """Failures that no rule judges and that fail the run all the same, one verdict a case: a wrong
    training, a control that was not caught.
    """
    failing = (Status.ERROR, Status.FAIL)
    unruled = [
        verdict for verdict in run.verdicts if not verdict.rule and verdict.counts in failing
    ]
    judged = {
        requirement.case for requirement in requirements(run) if requirement.counts in failing
    }
    return list(
        {
            verdict.case: verdict for verdict in reversed(unruled) if verdict.case not in judged
        }.values()
    )


def of_stand_in(run: RunRecord, verdict: Verdict) -> bool:
    """Whether a verdict says nothing of the hardware: something stood in for it."""
    if run.settings.engine == StandIn.EMULATED or run.settings.shared_gpu:
        return True
    cases = [*run.cases_by_hash.get(verdict.case_hash, ())]
    if (plan := run.plan_of.get(verdict.plan)) is not None:
        baselines = {
            b
            for contrast in plan.contrasts
            if contrast.name == verdict.contrast
            for b in contrast.baseline
        }
        cases += [plan.arm(name).case for name in baselines]
    return any(run.stand_ins(case) for case in cases)


def tally(run: RunRecord) -> Tally:
    """Counts a run's requirements by their outcome."""
    judged = requirements(run)
    counts = [verdict.counts for verdict in judged]
    waived = sum(verdict.waived and verdict.status is Status.FAIL for verdict in judged)
    return Tally(
        total=len(judged),
        hold=counts.count(Status.PASS),
        failed=counts.count(Status.FAIL),
        errors=counts.count(Status.ERROR),
        undecided=counts.count(Status.INCONCLUSIVE),
        waived=waived,
        recorded=counts.count(Status.RECORDED) - waived,
        stand_ins=sum(of_stand_in(run, verdict) for verdict in judged),
        controls=sum(verdict.reason is Reason.CAUGHT for verdict in run.verdicts),
        beside=len(wrong(run)),
    )
