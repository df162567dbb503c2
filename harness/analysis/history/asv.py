"""A run's figures into asv's result files, through asv's own classes.

``asv.results.Results`` is not a public interface: asv is pinned below 0.7, and a test reads the
files back with ``asv publish`` and ``asv compare``. Only lower-is-better figures are written,
since asv reports a gain as a regression.
"""

import ast
import datetime
import fcntl
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from harness.analysis.history import ledger
from harness.analysis.judging.pairs import timed, values_of
from harness.analysis.judging.points import points
from harness.base.documents import Json
from harness.record import RunRecord, ScalingPoint

#: Benchmarks of ``benchmarks/records.py``: name -> unit. asv prettifies seconds and bytes only.
BENCHMARKS: Mapping[str, str] = {
    "records.track_step_time": "seconds",
    "records.track_scaling_loss": "1",
    "records.track_peak_memory": "bytes",
    "records.track_wire_bytes": "bytes",
}
#: Which metric of a launch is tracked; the loss is derived from efficiencies.
_READ = {
    "records.track_step_time": "step_s",
    "records.track_peak_memory": "peak_bytes",
    "records.track_wire_bytes": "sent_bytes",
}
VERSION = "2"
ENVIRONMENT = "scaleproof"


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """What one run added to the history."""

    run: str
    commit: str
    num_values: int
    machine: str


@dataclass(kw_only=True)
class Figure:
    """One value of a series: a launch's values, or a derived one with its own interval."""

    launches: list[float] = field(default_factory=list)
    derived: float = math.nan
    interval: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """To 6 digits: no figure here has more."""
        exact = geometric_mean(self.launches) if self.launches else self.derived
        return float(f"{exact:.6g}")


def figures(run: RunRecord) -> dict[str, dict[str, Figure]]:
    """Benchmark -> case id -> its figure; stand-ins have a machine of their own."""
    out: dict[str, dict[str, Figure]] = {name: {} for name in BENCHMARKS}
    for plan in run.plans:
        ladder = {p.case: p for p in points(run, plan)}
        for arm in plan.arms:
            launches = [x for x in timed(run, plan) if x.arm == arm.name and x.usable]
            if not launches:
                continue
            case = arm.case.id
            for name, metric in _READ.items():
                if values := [v for v in values_of(launches, metric) if v > 0]:
                    out[name].setdefault(case, Figure()).launches.extend(values)
            if case in ladder and arm.case.world_size > 1:
                out["records.track_scaling_loss"][case] = _loss(ladder[case])
    return out


def _loss(point: ScalingPoint) -> Figure:
    """1 - efficiency, with the ends of its interval; asv knows no loss below zero."""
    ends = None
    if point.efficiency_low is not None and point.efficiency_high is not None:
        ends = (max(0.0, 1 - point.efficiency_high), max(0.0, 1 - point.efficiency_low))
    return Figure(derived=max(0.0, 1 - point.efficiency), interval=ends)


def ingest(run: RunRecord, results: Path) -> list[Ingested]:
    """Add one run to ``results/asv`` on the ledger ``results/axis.git``.

    Real cases and stand-ins go to different machines, so they never share a series.
    """
    commit, when = ledger.append(results / "axis.git", run)
    real = {a.case.id for p in run.plans for a in p.arms if not run.stand_ins(a.case)}
    every = figures(run)
    added = []
    hardware = run.machine.hardware_class
    for machine, wants_real in ((hardware, True), (f"paced-{hardware}", False)):
        chosen = {
            name: {case: v for case, v in cases.items() if (case in real) is wants_real}
            for name, cases in every.items()
        }
        count = sum(map(len, chosen.values()))
        if count:
            with _locked(results / "asv"):
                _write(run, results / "asv", machine, commit, when, chosen)
            added.append(
                Ingested(run=run.run, commit=commit[:8], num_values=count, machine=machine)
            )
    return added


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Asv reads, changes and writes without a lock: of two writers one would be lost."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _write(
    run: RunRecord,
    folder: Path,
    machine: str,
    commit: str,
    when: datetime.datetime,
    chosen: Mapping[str, Mapping[str, Figure]],
) -> None:
    from asv import results as asv_results, runner, util

    gpu = f"{run.machine.num_gpus}x {run.machine.gpu}" if run.machine.gpu else "none"
    facts = dict(
        machine=machine, cpu=run.machine.cpu, num_cpu=str(run.machine.num_cores), gpu=gpu,
        arch="", os="", ram="",
    )  # fmt: skip
    (folder / machine).mkdir(parents=True, exist_ok=True)
    util.write_json(str(folder / machine / "machine.json"), {**facts, "version": 1})
    known_path = folder / "benchmarks.json"
    known: dict[str, Json] = json.loads(known_path.read_text()) if known_path.is_file() else {}
    at_ms = round(when.timestamp() * 1000)
    stored = asv_results.Results(facts, {}, commit, at_ms, "", ENVIRONMENT, {})
    for name, unit in BENCHMARKS.items():
        old = known.get(name, {}).get("params", [[]])[0]
        cases = list(dict.fromkeys([*map(ast.literal_eval, old), *chosen[name]]))
        known[name] = _entry(name, unit, cases)
        values = [chosen[name].get(c) for c in cases]
        result = runner.BenchmarkResult(
            result=[v.value if v else math.nan for v in values],
            samples=[(v.launches or [v.value]) if v else None for v in values],
            number=[1 if v else None for v in values],
            errcode=0, stderr="", profile=None,
        )  # fmt: skip
        stored.add_result(known[name], result, record_samples=True)
        _ours(stored, name, values)
    stored.save(str(folder))
    util.write_json(str(known_path), {**known, "version": 2})


def _ours(stored: Any, name: str, figures: Sequence[Figure | None]) -> None:
    """Our values in place of those that asv makes of samples: medians, intervals of one sample.

    asv's name for the interval is ci_99; that of an efficiency holds 19 times in 20 at each end.
    """
    for i, figure in enumerate(figures):
        if figure is None:
            continue
        stored._results[name][i] = figure.value
        if figure.interval is not None:
            (low, high), at = figure.interval, figure.value
            quarter = 0.41 * (high - low) / 2  # of a normal one: asv's +- is between quartiles
            ends = {"ci_99_a": low, "ci_99_b": high, "q_25": at - quarter, "q_75": at + quarter}
            stored._stats[name][i] |= {**ends, "repeat": 2}  # of 1, asv looks at no interval


def _entry(name: str, unit: str, cases: Sequence[str]) -> dict[str, Json]:
    return dict(
        name=name, type="track", unit=unit, params=[[repr(c) for c in cases]],
        param_names=["case"], version=VERSION, timeout=60.0,
        code=f"value of {name.split('_', 1)[1]} in the record",
        pretty_name=name.split(".track_")[1].replace("_", " "),
    )  # fmt: skip


def value_of(run: RunRecord, benchmark: str, case: str) -> float:
    """One benchmark's value in a record; NaN where it does not apply."""
    figure = figures(run)[benchmark].get(case)
    return math.nan if figure is None else figure.value


def summary(added: Ingested) -> str:
    return f"{added.run}: {added.num_values} values for {added.machine}, ledger {added.commit}"
