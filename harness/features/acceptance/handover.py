"""The acceptance document's content: what was required of a system, and what came of each.

    runs -> every rule with its verdicts -> Requirement -> one word for all of them
         -> nodes to exclude, what differs between nodes, seals to check

A requirement that nothing judged is not met: it stands in the document as not measured. What
stand-ins and controls have shown is no evidence of a system: it stands apart and is not counted.
"""

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import nodes as nodes_
from harness.analysis.judging import neighbours
from harness.analysis.judging.tally import of_stand_in
from harness.analysis.nodes import Drift, Examined
from harness.analysis.reached import reached
from harness.analysis.verify import rejudge, verify
from harness.base.documents import fields_of
from harness.cases import Reach, Threshold
from harness.record import Reason, RunRecord, Status, Verdict, signature
from harness.record.outcome import SEVERITY

#: Facts of a machine that nodes of one system have in common.
_SHARED = ("cpu", "num_cores", "memory_gib", "gpu", "num_gpus", "gpu_memory_gib", "driver",
           "kernel", "mig", "power_limit_w", "infiniband")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One rule of a contract. ``status`` is its worst verdict's, None where nothing judged it;
    ``evidence`` are its verdicts, worst first, each with its run: of equal ones that which is
    nearest to the bound, or farthest beyond it. ``late``: it was given after what it judges had
    been measured.
    """

    rule: Threshold
    status: Status | None
    evidence: tuple[tuple[str, Verdict], ...]
    waived: bool
    late: bool


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What makes a run tamper-evident: the last link of its chain, who signed it, and what a
    verification of today found wrong.
    """

    run: str
    folder: str
    started_at: str
    complete: bool
    head: str
    signer: str
    num_launches: int
    differences: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Handover:
    """``status`` is PASS only where every requirement passed, or is waived, and all runs verify.

    ``stand_ins`` are the rules that judged waiting models, shared cores, emulated links and
    controls, with these verdicts. ``beyond`` are rules that ask for other hardware than was there,
    and for which.
    """

    status: Status
    made_on: str
    requirements: tuple[Requirement, ...]
    stand_ins: tuple[Requirement, ...]
    beyond: tuple[tuple[str, str], ...]
    exclude: tuple[tuple[str, str], ...]
    drift: tuple[Drift, ...]
    seals: tuple[Seal, ...]

    def count(self, status: Status | None) -> int:
        return sum(r.status is status for r in self.requirements)

    @property
    def num_waived(self) -> int:
        return sum(r.waived for r in self.requirements)


def handover(
    runs: Sequence[tuple[RunRecord, Path]],
    today: datetime.date,
    contract: Sequence[Threshold] | None = None,
) -> Handover:
    """What these runs together say of a system: by the rules of a contract, or else by their own.

    Without a contract rules that ask for other hardware are no requirements of this one.
    """
    seals = tuple(_seal(run, folder) for run, folder in runs)
    judged = [run if contract is None else rejudge(run, contract) for run, _ in runs]
    contracted = {t for run, _ in runs for t in run.thresholds}
    beyond = {} if contract is not None else _beyond(judged)
    rules = dict.fromkeys(t for run in judged for t in run.thresholds if t not in beyond)
    every = [_requirement(rule, judged, rule not in contracted, today) for rule in rules]
    stand_ins = [
        _requirement(rule, judged, rule not in contracted, today, apart=True) for rule in rules
    ]
    shown_apart = {r.rule for r in stand_ins if r.evidence}
    # Without a contract a rule of stand-ins alone asks nothing of the system.
    asked = [r for r in every if r.evidence or contract is not None or r.rule not in shown_apart]
    requirements = sorted(asked, key=_severity)
    return Handover(
        status=_overall(requirements, judged, seals),
        made_on=today.isoformat(),
        requirements=tuple(requirements),
        stand_ins=tuple(r for r in stand_ins if r.evidence),
        beyond=tuple((rule.name, why) for rule, why in beyond.items()),
        exclude=tuple(_exclude(judged)),
        drift=tuple(_drift(judged)),
        seals=seals,
    )


def _beyond(runs: Sequence[RunRecord]) -> dict[Threshold, str]:
    """Rules that no run could have met, and what they need."""
    met = [{rule: (how, why) for rule, how, why in reached(run)} for run in runs]
    return {
        rule: why
        for of_run in met
        for rule, (how, why) in of_run.items()
        if all(rule not in m or m[rule][0] is Reach.OUT_OF_REACH for m in met)
    }


def _severity(one: Requirement) -> int:
    """Worst first; what nobody measured comes right after what is undecided."""
    if one.status is None:
        return 2 * SEVERITY.index(Status.INCONCLUSIVE) + 1
    return 2 * SEVERITY.index(one.status)


def _requirement(
    rule: Threshold,
    runs: Sequence[RunRecord],
    late: bool,
    today: datetime.date,
    *,
    apart: bool = False,
) -> Requirement:
    """What came of a rule in all runs; with ``apart`` what stand-ins and controls showed of it."""
    evidence = [
        (run.run, v)
        for run in runs
        if rule in run.thresholds
        for v in run.verdicts
        if v.rule == rule.name and v.status is not Status.SKIP and of_no_system(run, v) is apart
    ]
    evidence.sort(key=lambda f: (SEVERITY.index(f[1].status), margin(rule, f[1])))
    worst = evidence[0][1].status if evidence else None
    failed = worst in (Status.FAIL, Status.ERROR)
    return Requirement(
        rule=rule,
        status=worst,
        evidence=tuple(evidence),
        waived=failed and rule.waived(today),
        late=late,
    )


def margin(rule: Threshold, verdict: Verdict) -> float:
    """How far a value is inside the bound, as a share of it; negative beyond, -inf without one."""
    if verdict.value is None:
        return -math.inf
    value = verdict.value
    inside = []
    if rule.at_least is not None:
        inside.append((value - rule.at_least) / (abs(rule.at_least) or 1.0))
    if rule.at_most is not None:
        inside.append((rule.at_most - value) / (abs(rule.at_most) or 1.0))
    return min(inside, default=math.inf)


def of_no_system(run: RunRecord, verdict: Verdict) -> bool:
    """Whether a verdict says nothing of the hardware: something stood in for it, or a training was
    wrong on purpose to see that this is noticed.
    """
    return verdict.reason in (Reason.CAUGHT, Reason.NOT_CAUGHT) or of_stand_in(run, verdict)


def _overall(
    requirements: Sequence[Requirement], runs: Sequence[RunRecord], seals: Sequence[Seal]
) -> Status:
    if any(s.differences for s in seals):
        return Status.ERROR
    statuses = {r.status for r in requirements if not r.waived}
    for status in (Status.ERROR, Status.FAIL):
        if status in statuses:
            return status
    if not statuses:
        broken = any(v.counts is Status.ERROR for run in runs for v in run.verdicts)
        return Status.ERROR if broken else Status.RECORDED
    open_ = {None, Status.INCONCLUSIVE, Status.RECORDED, Status.SKIP}
    return Status.INCONCLUSIVE if statuses & open_ else Status.PASS


def _exclude(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """(host, why): nodes that are better left out, each once."""
    why: dict[str, list[str]] = {}
    for run in runs:
        for host in run.suspects.nodes if run.suspects else ():
            why.setdefault(host, []).append("slow with every partner it was paired with")
        for device in neighbours.slow_devices(run):
            why.setdefault(device.host, []).append(device.told)
        for launch in run.launches:
            for gpu in launch.gpus:
                if gpu.lost and launch.ranks:
                    why.setdefault(launch.ranks[0].host, []).append(f"GPU {gpu.index} was lost")
    for host, reasons in why.items():
        yield host, "; ".join(dict.fromkeys(reasons))


def _drift(runs: Sequence[RunRecord]) -> Iterator[Drift]:
    """Between all machines that any of the runs used."""
    known: dict[str, Mapping[str, str]] = {}
    for run in runs:
        for machine in run.nodes or (run.machine,):
            shared = {fact: str(fields_of(machine)[fact]) for fact in _SHARED}
            known[machine.host] = run.facts.get(machine.host, shared)
    yield from nodes_.drift(
        [Examined(host=host, facts=facts, findings=()) for host, facts in known.items()]
    )


def _seal(run: RunRecord, folder: Path) -> Seal:
    verified = verify(run, folder)
    wrong = list(verified.differences)
    made = signature.signed(folder)
    if made is not None and (why := signature.holds(made, run.head)):
        wrong.append(why)
    if not run.head:
        wrong.append("the run is unchained: whether launches were left out cannot be said")
    return Seal(
        run=run.run,
        folder=str(folder),
        started_at=run.started_at,
        complete=run.complete,
        head=run.head,
        signer=made.key if made is not None else "",
        num_launches=len(run.launches),
        differences=tuple(wrong),
        command=run.settings.argv,
    )
