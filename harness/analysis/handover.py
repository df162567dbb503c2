"""The acceptance document's content: what was required of a system, and what came of each.

    runs -> every rule with its verdicts -> Requirement -> one word for all of them
         -> nodes to exclude, what differs between nodes, seals to check

A requirement that nothing judged is not met: it stands in the document as not measured.
"""

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import nodes as nodes_
from harness.analysis.judging import neighbours
from harness.analysis.nodes import Drift, Examined
from harness.analysis.reached import reached
from harness.analysis.verify import rejudge, verify
from harness.base.documents import fields_of
from harness.record import RunRecord, Status, Verdict, signature
from harness.record.outcome import SEVERITY
from harness.spec import Reach, Threshold

#: Facts of a machine that nodes of one system have in common.
_SHARED = ("cpu", "num_cores", "memory_gib", "gpu", "num_gpus", "gpu_memory_gib", "driver",
           "kernel", "mig", "power_limit_w", "infiniband")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One rule of a contract. ``status`` is its worst verdict's, None where nothing judged it;
    ``evidence`` are its verdicts, worst first, each with its run. ``late``: it was given after
    what it judges had been measured.
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

    ``beyond`` are rules that ask for other hardware than was there, and for which.
    """

    status: Status
    made_on: str
    requirements: tuple[Requirement, ...]
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
    own = {t for run, _ in runs for t in run.thresholds}
    beyond = {} if contract is not None else _beyond(judged)
    requirements = sorted(_requirements(judged, own, beyond, today), key=_severity)
    return Handover(
        status=_overall(requirements, seals),
        made_on=today.isoformat(),
        requirements=tuple(requirements),
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


def _requirements(
    runs: Sequence[RunRecord],
    own: Collection[Threshold],
    beyond: Collection[Threshold],
    today: datetime.date,
) -> Iterator[Requirement]:
    """Every rule that the runs are judged by; the same rule of several runs is one."""
    for rule in dict.fromkeys(t for run in runs for t in run.thresholds if t not in beyond):
        found = [
            (run.run, v)
            for run in runs
            if rule in run.thresholds
            for v in run.verdicts
            if v.rule == rule.name and v.status is not Status.SKIP
        ]
        found.sort(key=lambda f: SEVERITY.index(f[1].status))
        worst = found[0][1].status if found else None
        failed = worst in (Status.FAIL, Status.ERROR)
        yield Requirement(
            rule=rule, status=worst, evidence=tuple(found),
            waived=failed and rule.waived(today), late=rule not in own,
        )  # fmt: skip


def _overall(requirements: Sequence[Requirement], seals: Sequence[Seal]) -> Status:
    if any(s.differences for s in seals):
        return Status.ERROR
    told = {r.status for r in requirements if not r.waived}
    for status in (Status.ERROR, Status.FAIL):
        if status in told:
            return status
    if not told:
        return Status.RECORDED
    open_ = {None, Status.INCONCLUSIVE, Status.RECORDED, Status.SKIP}
    return Status.INCONCLUSIVE if told & open_ else Status.PASS


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
            told = {fact: str(fields_of(machine)[fact]) for fact in _SHARED}
            known[machine.host] = run.facts.get(machine.host, told)
    yield from nodes_.drift(
        [Examined(host=host, facts=facts, findings=()) for host, facts in known.items()]
    )


def _seal(run: RunRecord, folder: Path) -> Seal:
    verified = verify(run, folder)
    wrong, made = list(verified.differences), signature.signed(folder)
    if made is not None and (why := signature.holds(made, run.head)):
        wrong.append(why)
    if not run.head:
        wrong.append("the run is unchained: whether launches were left out cannot be said")
    return Seal(
        run=run.run, folder=str(folder), started_at=run.started_at, complete=run.complete,
        head=run.head, signer=made.key if made is not None else "",
        num_launches=len(run.launches), differences=tuple(wrong), command=run.settings.argv,
    )  # fmt: skip
