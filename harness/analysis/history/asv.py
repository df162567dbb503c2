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
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from harness.analysis.history import ledger
from harness.analysis.judging.pairs import timed, values_of
from harness.analysis.judging.points import points
from harness.base.documents import Json
from harness.record import RunRecord

#: Benchmarks of ``benchmarks/records.py``: name -> unit. asv prettifies seconds and bytes only.
BENCHMARKS: Mapping[str, str] = {
    "records.track_step_time": "seconds",
    "records.track_scaling_loss": "1",
    "records.track_peak_memory": "bytes",
    "records.track_wire_bytes": "bytes",
}
VERSION = "1"
ENVIRONMENT = "scaleproof"


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """What one run added to the history."""

    run: str
    commit: str
    num_values: int
    machine: str


def figures(run: RunRecord) -> dict[str, dict[str, list[float]]]:
    """Benchmark -> case id -> its launches' values; stand-ins have a machine of their own."""
    out: dict[str, dict[str, list[float]]] = {name: {} for name in BENCHMARKS}
    for plan in run.plans:
        efficiency = {p.case: p.efficiency for p in points(run, plan)}
        for arm in plan.arms:
            launches = [x for x in timed(run, plan) if x.arm == arm.name and x.usable]
            if not launches:
                continue
            case = arm.case.id
            out["records.track_step_time"].setdefault(case, []).extend(
                x.steps.median_s for x in launches if x.steps
            )
            for name, metric in (
                ("records.track_peak_memory", "peak_bytes"),
                ("records.track_wire_bytes", "sent_bytes"),
            ):
                values = values_of(launches, metric)
                if values:
                    out[name].setdefault(case, []).extend(values)
            if case in efficiency and arm.case.world_size > 1:
                out["records.track_scaling_loss"][case] = [max(0.0, 1 - efficiency[case])]
    return out


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
    chosen: Mapping[str, Mapping[str, Sequence[float]]],
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
            result=[fmean(v) if v else math.nan for v in values],
            samples=[list(v) if v else None for v in values],
            number=[1 if v else None for v in values],
            errcode=0, stderr="", profile=None,
        )  # fmt: skip
        stored.add_result(known[name], result, record_samples=True)
    stored.save(str(folder))
    util.write_json(str(known_path), {**known, "version": 2})


def _entry(name: str, unit: str, cases: Sequence[str]) -> dict[str, Json]:
    return dict(
        name=name, type="track", unit=unit, params=[[repr(c) for c in cases]],
        param_names=["case"], version=VERSION, timeout=60.0,
        code=f"value of {name.split('_', 1)[1]} in the record",
        pretty_name=name.split(".track_")[1].replace("_", " "),
    )  # fmt: skip


def value_of(run: RunRecord, benchmark: str, case: str) -> float:
    """One benchmark's value in a record; NaN where it does not apply."""
    values = figures(run)[benchmark].get(case)
    return fmean(values) if values else math.nan


def summary(added: Ingested) -> str:
    return f"{added.run}: {added.num_values} values for {added.machine}, ledger {added.commit}"
