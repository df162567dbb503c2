"""Collect the content of the acceptance document: requirements, their outcomes and evidence.

    runs, contract -> every clause with its evidence -> Requirement -> one status for all
         -> nodes to exclude, differences between nodes, seals to verify

A requirement without a verdict is not met, and the document lists it as not measured. Results of
simulated hardware and of controls are no evidence about a system. The document lists them
separately and does not count them.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import nodes as nodes_
from harness.analysis.audit import twice
from harness.analysis.judging import biases
from harness.analysis.nodes import Drift, Examined
from harness.analysis.reached import reached
from harness.analysis.results import results
from harness.analysis.verify import verify
from harness.base.documents import fields_of
from harness.cases import Reach, Threshold
from harness.features.acceptance.clauses import (
    ClauseEvidence,
    Requirement,
    evidence,
    hosts_of,
    judged,
    parts,
    reference,
    requirement,
    with_reason,
    worst_first,
)
from harness.features.acceptance.contract import Clause, Contract
from harness.record import Purpose, RunRecord, Status, signature
from harness.record.outcome import SEVERITY

#: Facts of a machine that are expected to be equal on all nodes of a system.
_SHARED = ("cpu", "num_cores", "memory_gib", "gpu", "num_gpus", "gpu_memory_gib", "driver",
           "kernel", "mig", "power_limit_w", "infiniband")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Seal:
    """The seal that makes changes to a run detectable.

    ``head`` is the digest of the last line of its chain. ``signer`` is the key of its signature, or
    empty if the run is not signed. ``differences`` lists the findings of today's verification.
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
    nonce: str = ""


@dataclass(frozen=True, kw_only=True)
class CoveredNode:
    """A measured node.

    ``devices`` is the number of its devices that trained, out of ``of``. ``runs`` are the runs that
    used the node.
    """

    host: str
    hardware: str
    devices: int
    of: int
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Handover:
    """The content of an acceptance document.

    ``status`` is PASS only if every requirement passed or is waived, and all runs verify.
    ``stand_ins`` are thresholds with verdicts on simulated hardware (waiting models, shared cores,
    emulated links) and on controls. ``beyond`` are thresholds for hardware that no run used or for
    measurements that no run made, with what they need. ``nodes`` are the nodes of all runs.
    ``accepted`` holds the seals of the accepted runs with which clauses were compared.
    """

    status: Status
    made_on: str
    contract: Contract | None
    requirements: tuple[Requirement, ...]
    stand_ins: tuple[Requirement, ...]
    beyond: tuple[tuple[str, str], ...]
    exclude: tuple[tuple[str, str], ...]
    drift: tuple[Drift, ...]
    nodes: tuple[CoveredNode, ...]
    seals: tuple[Seal, ...]
    accepted: tuple[Seal, ...]

    def count(self, status: Status | None) -> int:
        return sum(requirement.status is status for requirement in self.requirements)

    @property
    def num_waived(self) -> int:
        return sum(requirement.waived for requirement in self.requirements)


def handover(
    runs: Sequence[tuple[RunRecord, Path]],
    today: datetime.date,
    contract: Contract | None = None,
    accepted: Sequence[tuple[RunRecord, Path]] = (),
) -> Handover:
    """Judge a system by all of these runs.

    The clauses of the contract are judged. Without a contract, the thresholds are judged with which
    the runs were measured, except thresholds for other hardware. ``accepted`` are the runs with
    which clauses on accepted values are compared.
    """
    seals = tuple(
        _seal(run, folder, earlier=[other for other, _ in runs[:number]])
        for number, (run, folder) in enumerate(runs)
    )
    measured = [run for run, _ in runs]
    before = tuple(_seal(run, folder, measured) for run, folder in accepted)
    records = [run for run, _ in runs]
    references = [run for run, _ in accepted]
    beyond: Mapping[Threshold, str] = {}
    if contract is None:
        beyond = _beyond(records)
        every = _by_their_own(records, beyond, today)
    else:
        every = by_contract(contract, records, references, today)
    counted = [_counting(requirement, today, apart=False) for requirement in every]
    stand_ins = [_counting(requirement, today, apart=True) for requirement in every]
    shown_apart = {stand_in.rule for stand_in in stand_ins if stand_in.evidence}
    # Without a contract, a threshold that judged only simulated hardware requires nothing of the
    # system.
    asked = [
        requirement
        for requirement in counted
        if requirement.evidence or contract is not None or requirement.rule not in shown_apart
    ]
    requirements = sorted(asked, key=_severity)
    return Handover(
        status=overall(requirements, records, (*seals, *before)),
        made_on=today.isoformat(),
        contract=contract,
        requirements=tuple(with_reason(requirement, records) for requirement in requirements),
        stand_ins=tuple(stand_in for stand_in in stand_ins if stand_in.evidence),
        beyond=tuple((rule.name, why) for rule, why in beyond.items()),
        exclude=tuple(_exclude(records)),
        drift=tuple(_drift(records)),
        nodes=tuple(_nodes(records)),
        seals=seals,
        accepted=before,
    )


def by_contract(
    contract: Contract,
    runs: Sequence[RunRecord],
    accepted: Sequence[RunRecord],
    today: datetime.date,
) -> list[Requirement]:
    """Return the outcome of every clause."""
    shown = judged(contract, runs, accepted)
    return [
        requirement(
            clause,
            shown[clause.name],
            [part.name for part in parts(contract, clause.per, runs)],
            _lacking(clause, shown[clause.name], accepted),
            late=_late(clause, contract, runs),
            today=today,
        )
        for clause in contract.clauses
    ]


def _late(clause: Clause, contract: Contract, runs: Sequence[RunRecord]) -> bool:
    """Return whether nothing proves that the clause was agreed on before the measurement."""
    return any(
        clause.rule not in run.thresholds and not contract.known_to(run.settings.nonce)
        for run in runs
    )


def _lacking(
    clause: Clause, shown: Sequence[ClauseEvidence], accepted: Sequence[RunRecord]
) -> list[str]:
    """Return the cases with an accepted value that were not measured again."""
    if clause.of_accepted is None:
        return []
    measured = {evidence.result.case for evidence in shown}
    return [
        f"{case}, which was accepted"
        for case in reference(clause, accepted)
        if case not in measured
    ]


def _by_their_own(
    runs: Sequence[RunRecord], beyond: Mapping[Threshold, str], today: datetime.date
) -> list[Requirement]:
    """Return the outcome of the thresholds with which the runs were measured."""
    rules = dict.fromkeys(
        threshold for run in runs for threshold in run.thresholds if threshold not in beyond
    )
    requirements = []
    for rule in rules:
        verdicts = [
            evidence(run, "", rule, verdict)
            for run in runs
            if rule in run.thresholds
            for verdict in run.verdicts
            if verdict.rule == rule.name and verdict.status is not Status.SKIP
        ]
        clause = Clause(rule=rule, says=rule.note, asked_by="")
        shown = worst_first(verdicts)
        requirements.append(requirement(clause, shown, [""], [], late=False, today=today))
    return requirements


def _counting(of: Requirement, today: datetime.date, *, apart: bool) -> Requirement:
    """Return the requirement with only a part of its evidence.

    If ``apart`` is true, the verdicts on simulated hardware and controls are kept. Otherwise the
    verdicts that count are kept.
    """
    shown = [evidence for evidence in of.evidence if evidence.apart is apart]
    if len(shown) == len(of.evidence):
        return of
    units = [
        unit for unit in of.units if not apart or any(evidence.unit == unit for evidence in shown)
    ]
    lacking = [u for u in of.unmeasured if u not in of.units]
    return requirement(of.clause, shown, units, lacking, late=of.late, today=today)


def _beyond(runs: Sequence[RunRecord]) -> dict[Threshold, str]:
    """Return the thresholds by which no run could be judged, and the hardware that they need."""
    met = [{rule: (how, why) for rule, how, why in reached(run)} for run in runs]
    return {
        rule: why
        for of_run in met
        for rule, (how, why) in of_run.items()
        if all(rule not in m or m[rule][0] is Reach.OUT_OF_REACH for m in met)
    }


def _severity(requirement: Requirement) -> int:
    """Return a sort key that puts the worst first.

    Requirements without a measurement come directly after inconclusive ones.
    """
    if requirement.status is None:
        return 2 * SEVERITY.index(Status.INCONCLUSIVE) + 1
    return 2 * SEVERITY.index(requirement.status)


def overall(
    requirements: Sequence[Requirement], runs: Sequence[RunRecord], seals: Sequence[Seal]
) -> Status:
    if any(seal.differences for seal in seals):
        return Status.ERROR
    asked = {requirement.status for requirement in requirements if not requirement.waived}
    for status in (Status.ERROR, Status.FAIL):
        if status in asked:
            return status
    if not asked:
        broken = any(result.counts is Status.ERROR for run in runs for result in results(run))
        return Status.ERROR if broken else Status.RECORDED
    return Status.PASS if asked == {Status.PASS} else Status.INCONCLUSIVE


def _exclude(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """Yield (host, reason) for each node that should be excluded from the system."""
    why: dict[str, list[str]] = {}
    for run in runs:
        for host in run.suspects.nodes if run.suspects else ():
            why.setdefault(host, []).append("slow with every node it was paired with")
        for device in biases.slow_devices(run):
            why.setdefault(device.host, []).append(device.sentence)
        for launch in run.launches:
            for gpu in launch.gpus:
                if gpu.lost and launch.ranks:
                    why.setdefault(launch.ranks[0].host, []).append(f"GPU {gpu.index} was lost")
    for host, reasons in why.items():
        yield host, "; ".join(dict.fromkeys(reasons))


def _nodes(runs: Sequence[RunRecord]) -> Iterator[CoveredNode]:
    """Yield every node of the runs by name, with the number of its devices that trained."""
    machines = {m.host: m for run in runs for m in run.nodes or (run.machine,)}
    for host, machine in machines.items():
        trained = {
            (rank.local_rank if not rank.device_uuid else rank.device_uuid)
            for run in runs
            for launch in run.launches
            if launch.purpose is Purpose.TIMED
            for rank in launch.ranks
            if rank.host == host
        }
        there = machine.num_gpus or machine.num_cores
        yield CoveredNode(
            host=host,
            hardware=machine.title,
            devices=min(len(trained), there),
            of=there,
            runs=tuple(run.run for run in runs if host in hosts_of(run)),
        )


def _drift(runs: Sequence[RunRecord]) -> Iterator[Drift]:
    """Yield the differences between all machines that the runs used."""
    known: dict[str, Mapping[str, str]] = {}
    for run in runs:
        for machine in run.nodes or (run.machine,):
            shared_facts = {fact: str(fields_of(machine)[fact]) for fact in _SHARED}
            known[machine.host] = run.facts.get(machine.host, shared_facts)
    yield from nodes_.drift(
        [Examined(host=host, facts=facts, findings=()) for host, facts in known.items()]
    )


def _seal(run: RunRecord, folder: Path, earlier: Sequence[RunRecord] = ()) -> Seal:
    """Verify a run and return its seal.

    A copy of an earlier run is an error, so that no run counts twice.
    """
    verified = verify(run, folder)
    wrong = list(verified.differences)
    made = signature.signed(folder)
    if made is not None and (why := signature.holds(made, run.head)):
        wrong.append(why)
    if not run.head:
        wrong.append("the run has no chain, so launches could have been left out")
    wrong += filter(None, (twice(run, other) for other in earlier))
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
        nonce=run.settings.nonce,
    )
