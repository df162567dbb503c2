"""Export data frames of records for other programs: CSV, JSON lines, Parquet, OpenMetrics."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.analysis.ladder import arm_row
from harness.analysis.results import results
from harness.base.errors import SpecError
from harness.interface import frames
from harness.interface.report.tabled import written
from harness.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

#: The tables that can be exported, each with the function that returns its data frame.
TABLES: Mapping[str, Callable[[frames.Runs], pd.DataFrame]] = {
    "launches": frames.launches,
    "steps": frames.steps,
    "points": frames.points,
    "verdicts": frames.verdicts,
    "budgets": frames.budgets,
}
#: The file extensions, which select the format.
FORMS = (".csv", ".jsonl", ".parquet", ".prom", ".yaml")


def table(frame: pd.DataFrame, form: str) -> bytes:
    """Return a data frame as CSV, JSON lines or Parquet.

    Raises SpecError if Parquet is requested and the package pyarrow is missing.
    """
    if form == ".csv":
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        return "".join(f"{line}\n" for line in written([_named(row) for row in rows])).encode()
    if form == ".jsonl":
        return frame.to_json(orient="records", lines=True, double_precision=15).encode()
    if importlib.util.find_spec("pyarrow") is None:
        raise SpecError(
            "Parquet export needs the package pyarrow, which is not installed",
            expected="pyarrow, or another format: .csv, .jsonl",
            fix="pip install 'scaleproof[parquet]'",
        )
    whole = frame.copy()
    mixed = [name for name in whole.columns if str(whole[name].dtype) == "object"]
    for column in mixed:  # Parquet cannot store lists, or a column with values of several types.
        if not whole[column].map(lambda v: v is None or isinstance(v, str | bool)).all():
            whole[column] = whole[column].map(lambda v: None if v is None else str(v))
    content: bytes = whole.to_parquet(None, engine="pyarrow", index=False)
    return content


def _named(row: Mapping[object, object]) -> dict[str, object]:
    return {str(key): value for key, value in row.items()}


#: Name, unit and help text of each gauge. Its labels name the case, the machine and the run.
_GAUGES: Sequence[tuple[str, str, str]] = (
    ("throughput_samples_per_second", "", "Samples per second of all ranks together."),
    ("step_seconds", "seconds", "Mean duration of an optimizer step."),
    ("peak_memory_bytes", "bytes", "Peak memory of the rank that used most."),
    ("sent_bytes", "bytes", "Bytes that the busiest rank sends in a step."),
    ("efficiency_ratio", "ratio", "Throughput per rank relative to the baseline."),
    ("efficiency_low_ratio", "ratio", "Lower end of the interval of the efficiency."),
    ("efficiency_high_ratio", "ratio", "Upper end of the interval of the efficiency."),
    ("verdict_info", "", "1 for each verdict, with its status as a label."),
)


def openmetrics(runs: Sequence[RunRecord], doubts: Sequence[str] = ()) -> str:
    """Return gauges of every case, for a node exporter's textfile collector or a push gateway.

    ``doubts`` has a text for each run. If it is not empty, every status of the run is ``NOT
    VERIFIED``.

    Format: https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    samples: dict[str, list[str]] = {name: [] for name, _, _ in _GAUGES}

    def add(name: str, labels: Mapping[str, str], value: float | None) -> None:
        if value is not None and math.isfinite(value):
            listed = ",".join(f'{key}="{_escaped(verdict)}"' for key, verdict in labels.items())
            samples[name].append(f"scaleproof_{name}{{{listed}}} {value!r}")

    for run, doubt in zip(runs, doubts or [""] * len(runs), strict=True):
        where = {"machine": run.machine.hardware_class, "run": run.run}
        for plan in run.plans:
            for arm in plan.arms:
                row = arm_row(run, plan, arm)
                labels = {**where, "case": arm.case.id}
                add("throughput_samples_per_second", labels, row.throughput)
                add("step_seconds", labels, row.step_s)
                add("peak_memory_bytes", labels, row.peak_bytes)
                add("sent_bytes", labels, row.sent_bytes)
        for result in results(run):
            if result.metric == "efficiency":
                labels = {**where, "case": result.case, "against": result.against}
                add("efficiency_ratio", labels, result.value)
                add("efficiency_low_ratio", labels, result.low)
                add("efficiency_high_ratio", labels, result.high)
        for result in results(run):
            labels = {
                "metric": result.metric,
                "against": result.against,
                "rule": result.rule or "",
                "status": "NOT VERIFIED" if doubt else str(result.status),
            }
            add("verdict_info", {**where, "case": result.case, **labels}, 1.0)
    lines = []
    for name, unit, what in _GAUGES:
        kind, family = (
            ("info", name.removesuffix("_info")) if name.endswith("_info") else ("gauge", name)
        )
        lines.append(f"# TYPE scaleproof_{family} {kind}")
        lines += [f"# UNIT scaleproof_{family} {unit}"] if unit else []
        lines.append(f"# HELP scaleproof_{family} {what}")
        lines += dict.fromkeys(samples[name])
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f]", "?", text)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
