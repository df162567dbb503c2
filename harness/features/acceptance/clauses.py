"""Judge every clause of a contract on every unit of a machine, with the same judge as runs.

    run, unit -> the launches measured inside the unit -> judged again by the clause's threshold
    accepted record -> its interval -> two bounds: a PASS meets the upper, a FAIL misses the lower

This module never changes INCONCLUSIVE to PASS or FAIL. A PASS or FAIL from fewer measurements than
the clause requires becomes INCONCLUSIVE. A unit without measurements is reported as not measured.
"""

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from harness.analysis.judging.series import series
from harness.analysis.judging.verdicts import is_stand_in
from harness.analysis.results import Result, result_of
from harness.analysis.verify import rejudge
from harness.base.errors import SpecError
from harness.base.formatting import si
from harness.cases import Catalogue, Device, Form, Threshold, metrics
from harness.cases.case import SCRIPT
from harness.features.acceptance.contract import NODE, SYSTEM, Clause, Contract
from harness.record import LaunchRecord, Purpose, Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY

HOUR_NS = 3600e9
#: Bounds that every value meets. Judging an accepted record by a threshold with such a bound gives
#: its values and their intervals.
_LEAST = 0.0
_MOST = 1e300


@dataclass(frozen=True, kw_only=True)
class ClauseEvidence:
    """One verdict on one unit of the machine, from one run.

    ``unit`` is "" if the verdict is about the whole system. ``inside`` is the distance of the value
    from its bound as a share of the bound; it is negative beyond the bound. ``apart`` is true for
    simulated hardware and for controls, which are no evidence about a system.
    """

    run: str
    unit: str
    result: Result
    inside: float | None
    apart: bool


class AcceptedSpan(NamedTuple):
    """The interval of an accepted value."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One clause of a contract, or a threshold of a run, with its outcome.

    ``status`` is the worst status of its evidence and units, or None if no value was judged.
    ``evidence`` is sorted by status, then by the distance from the bound, smallest first.
    ``units`` lists all units to which the clause applies. ``unmeasured`` lists the units without a
    measurement, and other measurements that are missing. ``late`` is set if nothing proves that the
    threshold existed before the measurement. ``skipped`` is the reason why no launch of these runs
    could be judged by the threshold.
    """

    rule: Threshold
    clause: Clause
    status: Status | None
    evidence: tuple[ClauseEvidence, ...]
    units: tuple[str, ...]
    unmeasured: tuple[str, ...]
    waived: bool
    late: bool
    skipped: str = ""


@dataclass(frozen=True, kw_only=True)
class MachinePart:
    """A unit of the machine: its name and its hosts."""

    name: str
    hosts: frozenset[str]


def hosts_of(run: RunRecord) -> list[str]:
    """Return the hosts of the nodes that a run used."""
    return [machine.host for machine in run.nodes or (run.machine,)]


def parts(contract: Contract, per: str, runs: Sequence[RunRecord]) -> list[MachinePart]:
    """Return the units of one kind to which a clause applies, whether they were measured or not.

    Raises SpecError if two units of one kind share a node.
    """
    hosts = list(dict.fromkeys(host for run in runs for host in hosts_of(run)))
    if per == SYSTEM:
        return [MachinePart(name="", hosts=frozenset(hosts))]
    if per == NODE:
        unnamed = max(0, contract.terms.nodes - len(hosts))
        machine_parts = [MachinePart(name=host, hosts=frozenset({host})) for host in hosts]
        if unnamed:
            machine_parts.append(
                MachinePart(name=f"{unnamed} nodes that no run names", hosts=frozenset())
            )
        return machine_parts
    units = [
        MachinePart(
            name=group.name, hosts=frozenset(digest for digest in hosts if group.holds(digest))
        )
        for group in contract.groups
        if group.of == per
    ]
    for first, second in itertools.combinations(units, 2):
        if shared := sorted(first.hosts & second.hosts):
            raise SpecError(
                f"node {shared[0]} is in {per} {first.name} and in {per} {second.name}",
                expected="units of one kind that share no node, because each counts separately",
                fix="scaleproof accept contract show CONTRACT --toml",
            )
    return units


def within(run: RunRecord, part: MachinePart) -> RunRecord | None:
    """Return the part of a run that was measured on these nodes only, or None if there is none.

    Correctness checks, calibration launches and references are always included, because their
    results are valid for all nodes. A launch that failed before its ranks reported their hosts
    counts against every unit.
    """
    hosts = hosts_of(run)
    if set(hosts) <= part.hosts:
        return run
    inside = tuple(
        launch
        for launch in run.launches
        if launch.purpose not in (Purpose.TIMED, Purpose.PROFILE)
        or _places(launch, hosts) <= part.hosts
    )
    if not any(launch.purpose is Purpose.TIMED and launch.ranks for launch in inside):
        return None
    return replace(run, launches=inside, fabric=(), recoveries=(), played=())


def _places(launch: LaunchRecord, hosts: Sequence[str]) -> set[str]:
    if launch.ranks:
        return {rank.host for rank in launch.ranks}
    return {hosts[number] for number in launch.hosts if number < len(hosts)}


def judged(
    contract: Contract, runs: Sequence[RunRecord], accepted: Sequence[RunRecord]
) -> dict[str, list[ClauseEvidence]]:
    """Return the evidence of each clause, by the name of the clause.

    The evidence consists of all verdicts on all units of the clause, the worst first.
    """
    out: dict[str, list[ClauseEvidence]] = {clause.name: [] for clause in contract.clauses}
    for per in dict.fromkeys(clause.per for clause in contract.clauses):
        clauses = [clause for clause in contract.clauses if clause.per == per]
        for part in parts(contract, per, runs):
            for run in runs:
                if (inside := within(run, part)) is not None:
                    for clause, rule, verdict in _verdicts(clauses, inside, accepted):
                        out[clause.name].append(evidence(run, part.name, rule, verdict))
    return {name: worst_first(every) for name, every in out.items()}


def worst_first(every: Sequence[ClauseEvidence]) -> list[ClauseEvidence]:
    """Sort evidence by status, and for equal statuses by the distance from the bound."""
    return sorted(every, key=_severity)


def evidence(run: RunRecord, unit: str, rule: Threshold, verdict: Verdict) -> ClauseEvidence:
    """Return a verdict of a run as evidence for a threshold."""
    return ClauseEvidence(
        run=run.run,
        unit=unit,
        result=result_of(run, verdict),
        inside=margin(rule, verdict),
        apart=of_no_system(run, verdict),
    )


def _severity(shown: ClauseEvidence) -> tuple[int, float]:
    inside = -math.inf if shown.inside is None else shown.inside
    return SEVERITY.index(shown.result.status), inside


def of_no_system(run: RunRecord, verdict: Verdict) -> bool:
    """Return whether a verdict is no evidence about hardware.

    This is true if the hardware was simulated. It is also true for a control: its training has an
    injected fault that must be detected.
    """
    if verdict.reason in (Reason.CAUGHT, Reason.NOT_CAUGHT) or is_stand_in(run, verdict):
        return True
    return not verdict.case_hash and _series_stands_in(run, verdict.case)


def _series_stands_in(run: RunRecord, name: str) -> bool:
    """Return whether a series outside of plans was simulated or oversubscribed.

    A series is simulated if its model waits instead of computing, or if its model is unknown. It is
    oversubscribed if it had more ranks than CPU cores.
    """
    measured = next((s for s in series(run) if s.name == name), None)
    if measured is None:
        return True
    crowded = run.settings.device is Device.CPU and measured.world_size > run.machine.num_cores
    model, dash, _ = name.partition("@")[0].partition("/")[2].rpartition("-")
    if not dash:  # This is a sweep of the fabric, which trains no model.
        return crowded
    if name.startswith(f"{SCRIPT}/"):
        return crowded
    catalogue = Catalogue(list(map(Path, run.settings.paths))).entries["models"].get(model)
    return crowded or catalogue is None or "STAND_IN" in catalogue.head


def margin(rule: Threshold, verdict: Verdict) -> float | None:
    """Return the distance of a value from its bound as a share of the bound.

    The result is negative beyond the bound, and None without a value or a bound.
    """
    if verdict.value is None:
        return None
    value = verdict.value
    inside = []
    if rule.at_least is not None:
        inside.append((value - rule.at_least) / (abs(rule.at_least) or 1.0))
    if rule.at_most is not None:
        inside.append((rule.at_most - value) / (abs(rule.at_most) or 1.0))
    return min(inside, default=None)


def requirement(
    clause: Clause,
    shown: Sequence[ClauseEvidence],
    units: Sequence[str],
    lacking: Sequence[str],
    *,
    late: bool,
    today: datetime.date,
) -> Requirement:
    """Return the outcome of a clause from the evidence that counts.

    ``lacking`` names missing measurements that are not units, such as cases with an accepted value.
    """
    measured = {evidence.unit for evidence in shown}
    unmeasured = (*(unit for unit in units if unit not in measured), *lacking)
    worst = shown[0].result.status if shown else None
    if unmeasured and worst in (Status.PASS, Status.RECORDED):
        worst = Status.INCONCLUSIVE
    met = any(evidence.result.reason is Reason.UNEXPECTED_PASS for evidence in shown)
    return Requirement(
        rule=clause.rule,
        clause=clause,
        status=worst,
        evidence=tuple(shown),
        units=tuple(units),
        unmeasured=tuple(u for u in unmeasured if u),
        waived=worst is Status.FAIL and not met and clause.rule.waived(today),
        late=late,
    )


def with_reason(of: Requirement, runs: Sequence[RunRecord]) -> Requirement:
    """Return the requirement, with the reason if these runs could not measure it."""
    device = of.rule.device
    devices = {run.settings.device for run in runs}
    if of.status is not None or device is None or device in devices:
        return of
    ran = ", ".join(sorted(map(str, devices)))
    return replace(of, skipped=f"the clause is for {device}, but these runs used {ran}")


def _verdicts(
    clauses: Sequence[Clause], run: RunRecord, accepted: Sequence[RunRecord]
) -> Iterator[tuple[Clause, Threshold, Verdict]]:
    """Yield the verdicts of a run on clauses, each with its clause and the threshold used."""
    plain = [clause.rule for clause in clauses if clause.of_accepted is None]
    by_name = {clause.name: clause for clause in clauses}
    for verdict in rejudge(run, plain).verdicts if plain else ():
        if verdict.rule in by_name and verdict.status is not Status.SKIP:
            clause = by_name[verdict.rule]
            yield clause, clause.rule, sampled(clause, verdict, run)
    for clause in clauses:
        if clause.of_accepted is not None:
            for rule, verdict in against(clause, run, accepted):
                yield clause, rule, sampled(clause, verdict, run)


def sampled(clause: Clause, verdict: Verdict, run: RunRecord) -> Verdict:
    """Return the verdict, or INCONCLUSIVE if less was measured than the clause requires."""
    if verdict.status not in (Status.PASS, Status.FAIL):
        return verdict
    lacks = ""
    if verdict.n < clause.pairs:
        lacks = f"the clause requires {clause.pairs} pairs, and {verdict.n} were measured"
    hours = measured_hours(clause, verdict, run)
    if hours < clause.hours:
        lacks = f"the clause requires {clause.hours:g} h, and {hours:.2g} h were measured"
    if not lacks:
        return verdict
    word = "pass" if verdict.status is Status.PASS else "fail"
    return replace(
        verdict,
        status=Status.INCONCLUSIVE,
        reason=Reason.TOO_FEW_PAIRS,
        detail=f"would {word}, but {lacks}",
    )


def measured_hours(clause: Clause, verdict: Verdict, run: RunRecord) -> float:
    """Return the measured time in hours.

    This is the wall-clock time of the trainings with injected interruptions if the clause is about
    them, or else the wall-clock time of the run.
    """
    plays = [
        played for played in run.played if played.case == verdict.case and played.mtbf_s is not None
    ]
    if not plays or not metrics.metric(clause.rule.metric).measured_by:
        return run.elapsed_s / 3600
    spans = (play.sittings[-1].marks[-1][2] - play.sittings[0].began_ns for play in plays)
    return math.fsum(spans) / HOUR_NS


def against(
    clause: Clause, run: RunRecord, accepted: Sequence[RunRecord]
) -> Iterator[tuple[Threshold, Verdict]]:
    """Yield verdicts on a clause whose bound is a share of an accepted value.

    Each value is judged by two bounds, which follow from both ends of the accepted interval.
    """
    known = reference(clause, accepted)
    sound = {case: span for case, span in known.items() if span is not None}
    yield from _without_reference(clause, run, sound)
    hard = {case: _bounded(clause, case, span, hard=True) for case, span in sound.items()}
    soft = [_bounded(clause, case, span, hard=False) for case, span in sound.items()]
    same = any(a.machine.hardware_class == run.machine.hardware_class for a in accepted)
    by_hard = rejudge(run, tuple(hard.values())).verdicts
    by_soft = rejudge(run, soft).verdicts
    for asks_more, asks_less in zip(by_hard, by_soft, strict=True):
        if asks_more.rule != clause.name or asks_more.status is Status.SKIP:
            continue
        verdict = _between(asks_more, asks_less)
        if not same and verdict.status in (Status.PASS, Status.FAIL):
            verdict = _open(verdict, "the accepted record was measured on other hardware")
        rule = hard[verdict.case]
        yield rule, replace(verdict, bound=f"{_bound(rule)} from the accepted record")


def rules_of(contract: Contract, accepted: Sequence[RunRecord]) -> list[Threshold]:
    """Return the thresholds to measure runs with.

    A clause on an accepted value gives two thresholds, one for each end of the accepted interval.
    """
    rules = []
    for clause in contract.clauses:
        if clause.of_accepted is None:
            rules.append(clause.rule)
            continue
        spans = reference(clause, accepted)
        for number, (case, span) in enumerate(spans.items(), 1):
            for hard in (True, False) if span is not None else ():
                assert span is not None
                name = f"{clause.name}_{number}_{'upper' if hard else 'lower'}"
                rules.append(replace(_bounded(clause, case, span, hard=hard), name=name))
    return rules


def reference(clause: Clause, accepted: Sequence[RunRecord]) -> Mapping[str, AcceptedSpan | None]:
    """Return the accepted interval of each case.

    It is None if the accepted value has a caveat or comes from simulated hardware.
    """
    wide = replace(clause.rule, at_least=_LEAST, at_most=None)
    if not metrics.metric(clause.rule.metric).more_is_better:
        wide = replace(clause.rule, at_least=None, at_most=_MOST)
    out: dict[str, AcceptedSpan | None] = {}
    for run in accepted:
        for verdict in rejudge(run, [wide]).verdicts:
            if verdict.rule != clause.name or verdict.status is Status.SKIP:
                continue
            before = out.get(verdict.case, AcceptedSpan(low=math.inf, high=-math.inf))
            sound = verdict.status is Status.PASS and not of_no_system(run, verdict)
            if not sound or before is None or verdict.low is None or verdict.high is None:
                out[verdict.case] = None
            else:
                low = min(before.low, verdict.low)
                out[verdict.case] = AcceptedSpan(low=low, high=max(before.high, verdict.high))
    return out


def _without_reference(
    clause: Clause, run: RunRecord, sound: Mapping[str, AcceptedSpan]
) -> Iterator[tuple[Threshold, Verdict]]:
    """Yield an INCONCLUSIVE verdict for each measured case without an accepted value."""
    for verdict in rejudge(run, [clause.rule]).verdicts:
        asked = verdict.rule == clause.name and verdict.status is not Status.SKIP
        if asked and verdict.case not in sound:
            why = "no accepted record has a reliable value of this case"
            yield clause.rule, replace(_open(verdict, why), bound=clause.asks)


def _bounded(clause: Clause, case: str, span: AcceptedSpan, *, hard: bool) -> Threshold:
    """Return the clause's threshold with the bound that follows from an accepted value.

    ``hard`` selects the end of the accepted interval that gives the stricter bound.
    """
    assert clause.of_accepted is not None
    share = clause.of_accepted
    pattern = "".join(f"[{c}]" if c in "*?[" else c for c in case)
    if metrics.metric(clause.rule.metric).more_is_better:
        end = span.high if hard else span.low
        return replace(clause.rule, case=pattern, at_least=share * end, at_most=None)
    end = span.low if hard else span.high
    return replace(clause.rule, case=pattern, at_least=None, at_most=end / share)


def _bound(rule: Threshold) -> str:
    """Return a bound that follows from a measurement, with a unit prefix."""
    end = rule.at_least if rule.at_least is not None else rule.at_most
    assert end is not None
    sign = ">=" if rule.at_least is not None else "<="
    absolute = metrics.metric(rule.metric).form is Form.ABSOLUTE
    return f"{sign}{si(end, rule.unit) if absolute else f'{end:.3f}'}"


def _between(hard: Verdict, soft: Verdict) -> Verdict:
    """Combine the verdicts on two bounds. The result is PASS or FAIL only if both agree."""
    if soft.status in (Status.FAIL, Status.ERROR):
        return soft
    if hard.status is not Status.FAIL:
        return hard
    why = (
        "the value lies between the bounds from the accepted interval:"
        " more pairs in either run would decide"
    )
    return replace(hard, status=Status.INCONCLUSIVE, reason=Reason.SPANS_BOUND, detail=why)


def _open(verdict: Verdict, why: str) -> Verdict:
    """Return a verdict with its figures and this reason, but INCONCLUSIVE."""
    return replace(verdict, status=Status.INCONCLUSIVE, reason=Reason.NOT_COMPARABLE, detail=why)
