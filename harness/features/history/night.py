"""The entry of a nightly run in the history: a small file, called a night.

Everything else in the history is derived from these files.
"""

import fcntl
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import geometric_mean

from harness.analysis.judging import blockers
from harness.analysis.judging.contrast_data import pairs, timed, values_of
from harness.analysis.judging.fingerprint import fingerprint
from harness.analysis.judging.points import budgets, points
from harness.base import files, stats
from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError
from harness.cases import Arm, Plan, Role
from harness.cases.recipes import PINNED
from harness.record import LaunchRecord, RunRecord, ScalingPoint

#: Two-sided error probability of the intervals of values.
ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A metric of a case whose history is recorded. Lower values are better, as asv expects.

    A change of level smaller than ``floor`` is ignored. ``floor`` is a relative change, or a
    difference if ``points`` is set.
    """

    unit: str
    floor: float
    points: bool = False


#: The quantities of a history by name.
QUANTITIES: Mapping[str, Quantity] = {
    "step_time": Quantity(unit="s", floor=0.01),
    "step_time_to_control": Quantity(unit="1", floor=0.005),
    "scaling_loss": Quantity(unit="1", floor=0.01, points=True),
    "exposed_communication": Quantity(unit="s", floor=0.05),
    "peak_memory": Quantity(unit="B", floor=0.01),
    "wire_bytes": Quantity(unit="B", floor=0.001),
    "launch_cost": Quantity(unit="s", floor=0.05),
}


@dataclass(frozen=True, kw_only=True)
class Value:
    """The value of a quantity in one night.

    It is the geometric mean of ``launches``, or has an interval from ``low`` to ``high`` instead.
    """

    value: float
    low: float | None = None
    high: float | None = None
    launches: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeptFigure:
    """The values of a case in one night.

    ``error`` is the reason why the case has no values. ``nodes`` is a hash that identifies its
    hosts without their names, and is empty if they are unknown.
    """

    hash: str
    stand_in: bool
    values: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    nodes: str = ""


@dataclass(frozen=True, kw_only=True)
class Night:
    """One nightly run on one hardware class.

    ``subject`` holds the versions of the measured software and driver. ``fingerprint`` holds the
    fields that must be equal for nights to be comparable. ``folder`` is the folder of the run's
    record when it was added. The path is relative to the results folder if it lies inside.
    ``machine`` holds the facts that asv shows.
    """

    run: str
    started_at: str
    hardware: str
    subject: Mapping[str, str]
    fingerprint: Mapping[str, str]
    cases: Mapping[str, KeptFigure]
    machine: Mapping[str, str]
    folder: str = ""

    @property
    def when(self) -> datetime:
        """The time at which the run started."""
        return datetime.fromisoformat(self.started_at)


@contextmanager
def locked(results: Path) -> Iterator[None]:
    """Hold the lock of the history. Wait while another process holds it."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".history.lock").open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def keep(night: Night, results: Path) -> bool:
    """Write the file of a night; return False if it already existed."""
    path = results / "nights" / f"{night.run}.json"
    text = json.dumps(to_doc(night), indent=1) + "\n"
    new = not path.is_file()
    if new or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.writing_to(path.parent):
            files.write({path: text})
    return new


def nights(results: Path) -> list[Night]:
    """Return all nights, oldest first; raise RecordError if a file cannot be read."""
    known = []
    for path in (results / "nights").glob("*.json"):
        try:
            known.append(from_doc(Night, json.loads(path.read_text(encoding="utf-8"))))
        except ValueError as error:
            raise RecordError(
                f"the file is not an entry of the history: {error}",
                where=str(path),
                expected="a file that scaleproof history add wrote",
                fix=f"rm {path} && scaleproof history add RUN",
            ) from None
    return sorted(known, key=lambda night: (night.when, night.run))


def night_of(run: RunRecord, folder: Path) -> Night:
    """Return the entry of a run in the history; raise RecordError if the run must not be added."""
    _refuse(run, folder)
    gpu = f"{run.machine.num_gpus}x {run.machine.gpu}" if run.machine.gpu else "none"
    cases: dict[str, KeptFigure] = {}
    for plan in run.plans:
        ladder = {point.case: point for point in points(run, plan)}
        for arm in plan.arms:
            if arm.role in (Role.ABLATION, Role.CONTROL) or not _own(arm):
                continue
            values = _kept(run, plan, arm, ladder.get(arm.case.id))
            if values is not None:
                cases[arm.case.id] = _merged(cases.get(arm.case.id), values)
    return Night(
        run=run.run,
        started_at=run.started_at,
        hardware=run.machine.hardware_class,
        subject={**run.software, "driver": run.machine.driver or "none"},
        fingerprint=fingerprint(run),
        cases=cases,
        machine=dict(cpu=run.machine.cpu, num_cpu=str(run.machine.num_cores), gpu=gpu),
        folder=str(folder),
    )


def _refuse(run: RunRecord, folder: Path) -> None:
    """Raise RecordError if a run must not be added to the history."""
    reason = ""
    if not run.complete:
        reason = "the run was interrupted"
        fix = run.continuation(folder)
    elif run.software.get("suite", "").endswith("-dirty"):
        reason, fix = "the suites had uncommitted changes", "git commit, then measure again"
    elif not any(timed(run, plan) and any(map(_own, plan.arms)) for plan in run.plans):
        reason = (
            "the run has only profiles, bandwidth sweeps or other setups, and no timed launch in"
            " the environment of the run itself"
        )
        fix = "pytest suites/"
    if reason:
        raise RecordError(
            f"{reason}: it cannot be added to the history",
            where=str(folder),
            expected="a run that is complete and whose suites are committed",
            fix=fix,
        )


def _own(arm: Arm) -> bool:
    """Return whether an arm measures the run's main environment or its pinned environment."""
    return arm.case.setup in ("", PINNED)


def _kept(run: RunRecord, plan: Plan, arm: Arm, point: ScalingPoint | None) -> KeptFigure | None:
    """Return the values of a case in one plan.

    Return None if the case was not timed and none of its launches failed.
    """
    of_arm = [x for x in timed(run, plan, None) if x.arm == arm.name]
    stand_in = bool(run.stand_ins(arm.case))
    failed = [x for x in run.launches if x.case == arm.case.hash and not (x.usable or x.discarded)]
    if failed:
        wrong = [*failed[-1].wrong, blockers.blame(failed[-1])]
        return KeptFigure(hash=arm.case.hash, stand_in=stand_in, error=wrong[0])
    if not of_arm:
        return None
    values = dict(_values(of_arm))
    if point is not None and arm.case.world_size > 1:
        values["scaling_loss"] = _loss(point)
    profiled = budgets(run, arm.case)
    if profiled and arm.case.world_size > 1 and "step_time" in values:
        shares = [x.budget.exposed_share for x in profiled if x.budget is not None]
        exposed = sum(shares) / len(shares) * values["step_time"].value
        values["exposed_communication"] = Value(value=_short(exposed))
    for contrast in plan.contrasts:
        if contrast.subject == arm.name and contrast.against == PINNED:
            if ratios := pairs(run, plan, contrast).values:  # inverse: ratios of throughput
                values["step_time_to_control"] = _ratio([1 / ratio for ratio in ratios])
    hosts = sorted({rank.host for launch in of_arm for rank in launch.ranks})
    return KeptFigure(
        hash=arm.case.hash, stand_in=stand_in, values=values, nodes=_without_names(hosts)
    )


def _without_names(hosts: Sequence[str]) -> str:
    """Return a hash that identifies a set of hosts without revealing their names."""
    return hashlib.sha256("\n".join(hosts).encode()).hexdigest()[:8] if hosts else ""


def _values(launches: Sequence[LaunchRecord]) -> Iterator[tuple[str, Value]]:
    """Yield (name, value) of every quantity that these launches have."""
    setups = [max(rank.setup_s for rank in launch.ranks) for launch in launches]
    read = {
        "step_time": values_of(launches, "step_s"),
        "peak_memory": values_of(launches, "peak_bytes"),
        "wire_bytes": values_of(launches, "sent_bytes"),
        "launch_cost": [setup for setup in setups if setup],
    }
    for name, every in read.items():
        if positive := [v for v in every if v > 0]:
            yield name, _mean(positive)


def _mean(launches: Sequence[float]) -> Value:
    """Return the geometric mean of launches."""
    mean = geometric_mean(launches)
    return Value(value=_short(mean), launches=tuple(map(_short, launches)))


def _ratio(ratios: Sequence[float]) -> Value:
    """Return the geometric mean of the ratios of pairs, with its interval.

    A drift of the machine cancels in each ratio.
    """
    interval = stats.t_interval([math.log(ratio) for ratio in ratios], ALPHA)
    ends = [None if end is None else _short(math.exp(end)) for end in (interval.low, interval.high)]
    return Value(value=_short(math.exp(interval.mean)), low=ends[0], high=ends[1])


def _loss(point: ScalingPoint) -> Value:
    """Return 1 - efficiency, with the ends of its interval."""
    low, high = point.efficiency_low, point.efficiency_high
    return Value(
        value=_short(1 - point.efficiency),
        low=None if high is None else _short(1 - high),
        high=None if low is None else _short(1 - low),
    )


def _merged(a: KeptFigure | None, b: KeptFigure) -> KeptFigure:
    """Return the values of a case that two plans contain, with the launches of both plans.

    If the case has an error in one of the plans, the result has that error and no values.
    """
    if a is None or b.error:
        return b
    if a.error:
        return a
    values = {**b.values, **a.values}
    for name in {*a.values} & {*b.values}:
        if launches := (*a.values[name].launches, *b.values[name].launches):
            values[name] = _mean(launches)
    nodes = a.nodes if a.nodes == b.nodes else _without_names(sorted([a.nodes, b.nodes]))
    return KeptFigure(hash=a.hash, stand_in=a.stand_in, values=values, nodes=nodes)


def _short(value: float) -> float:
    """Return a value rounded to 6 digits, because no metric here is more precise."""
    return float(f"{value:.6g}")
