"""Expected values of a class of hardware, each with its source, read from a references file.

    [[reference]]
    case = "ddp/decoder-tiny/weak@2cpu"     # a whole id
    metric = "efficiency"                   # or throughput, peak_bytes, sent_bytes/step_s ...
    baseline = "plain"                      # ratios only
    value = 0.88
    lower = -0.10                           # relative deviation allowed below; optional
    upper = 0.10
    unit = "1"
    status = "measured"                     # measured | derived | claimed | provisional
    n = 8
    date = 2026-11-21
    source = "run 20261121-101526-413a"
    fingerprint = ["engine=local"]          # settings that must be equal; empty = any

A file is named after its hardware class. Every reference becomes a threshold. A threshold with the
status ``claimed`` or ``provisional`` cannot lead to a PASS.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.judging import contrast_data, judge
from harness.analysis.judging.blockers import find_blocker
from harness.analysis.judging.caveats import spoilt
from harness.analysis.judging.contrast_data import ContrastData
from harness.analysis.judging.fingerprint import as_items, fingerprint
from harness.base.documents import from_doc
from harness.base.errors import ConfigError
from harness.base.toml import Key, check_table, keys_of, read_tables
from harness.cases import BASELINES, BoundSource, Form, Threshold, metrics
from harness.record import RunRecord, Status
from harness.record.store import write_text

STATUSES = ("measured", "derived", "claimed", "provisional")


@dataclass(frozen=True, kw_only=True)
class ExpectedValue:
    """One expected value.

    ``lower`` and ``upper`` are the allowed deviations, relative to ``value``. If one of them is
    None, there is no limit on that side.
    """

    case: str
    metric: str
    unit: str
    value: float
    status: str
    date: str
    source: str
    baseline: str | None = None
    lower: float | None = None
    upper: float | None = None
    n: int | None = None
    fingerprint: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str | None]:
        return self.case, self.metric, self.baseline

    def threshold(self, hardware: str) -> Threshold:
        """Return the threshold that compares a run with this value."""
        against = f" v {self.baseline}" if self.baseline else ""
        return Threshold(
            name=f"reference: {self.case} {self.metric}{against}",
            case=self.case,
            metric=self.metric,
            unit=self.unit,
            source=BoundSource(self.status),
            baseline=self.baseline,
            hardware=hardware,
            at_least=None if self.lower is None else self.value * (1 + self.lower),
            at_most=None if self.upper is None else self.value * (1 + self.upper),
            note=f"{self.value:.4g}, {self.status} {self.date}, {self.source}",
            fingerprint=self.fingerprint,
        )


_KEYS = keys_of(
    ExpectedValue,
    status=Key(kind=str, required=True, choices=STATUSES),
    date=Key(kind=datetime.date, required=True),
    baseline=Key(kind=str, choices=BASELINES),
)


def path_for(place: Path, hardware: str) -> Path:
    """Return the references file of a hardware class.

    It is ``place`` itself, or the file of this hardware class in it if ``place`` is a folder.
    """
    return place / f"{hardware}.toml" if place.is_dir() or not place.suffix else place


def load(path: Path) -> tuple[ExpectedValue, ...]:
    """Read a references file; raise a ConfigError that lists every mistake with its line."""
    tables, problems = read_tables(path, "reference", "--references")
    references = []
    for table in tables:
        if not check_table(table, _KEYS, problems, "reference"):
            continue
        v, line = table.values, table.lines
        try:
            unit = metrics.metric(v["metric"]).unit
        except KeyError:
            problems.add(line["metric"], f"there is no metric {v['metric']!r}")
            continue
        if unit != v["unit"]:
            problems.add(line["unit"], f"{v['metric']} is in {unit!r}, not {v['unit']!r}")
        if v["status"] == "measured" and not v.get("n"):
            problems.add(table.line, "a measured value needs n, its number of pairs")
        if "lower" not in v and "upper" not in v:
            problems.add(table.line, "a reference needs lower or upper", "lower = -0.05")
        if v.get("lower", 0) > 0 or v.get("upper", 0) < 0:
            problems.add(table.line, "lower must be <= 0 and upper >= 0 (relative to value)")
        references.append(from_doc(ExpectedValue, {**v, "date": v["date"].isoformat()}))
    keys = [reference.key for reference in references]
    for key in {k for k in keys if keys.count(k) > 1}:
        problems.add(0, f"there are two references for {key[0]} {key[1]}")
    problems.raise_any()
    return tuple(references)


def write(path: Path, references: Sequence[ExpectedValue]) -> None:
    lines = ["# Expected values of this hardware class, for `scaleproof history baseline`."]
    for reference in references:
        lines += ["", "[[reference]]"]
        for name, value in vars(reference).items():
            if name == "date":
                lines.append(f"date = {value}")
            elif value is not None and value != ():
                lines.append(f"{name} = {json.dumps(value)}")
    write_text(path, "\n".join(lines) + "\n")


def measured(run: RunRecord, tolerance: float) -> tuple[list[ExpectedValue], list[tuple[str, str]]]:
    """Return a run's values for a references file, and a (case, reason) for each unusable value.

    The values are every measured ratio and the throughput of each subject. Each may deviate by
    ``tolerance`` on both sides. Values of simulated devices are omitted, because they do not
    describe hardware. A value is unusable if no verdict could be based on it, for example
    because of incorrect training, a noisy host, or drifting step times.
    """
    by_key: dict[tuple[str, str, str | None], ExpectedValue] = {}
    doubted: dict[tuple[str, str], None] = {}
    items = as_items(fingerprint(run))
    for plan in run.plans:
        subjects = {c.subject: c for c in plan.contrasts if c.baseline}
        rates = [contrast_data.absolute("throughput", name) for name in subjects]
        for contrast in (*plan.contrasts, *rates):
            case = plan.arm(contrast.subject).case
            metric = metrics.metric(contrast.metric)
            if run.stand_ins(case) or metric.form is Form.GATE:
                continue
            evidence = ContrastData.of(run, plan, contrast)
            if (reason := find_blocker(evidence) or spoilt(evidence)) is not None:
                if reason.status is not Status.SKIP:
                    doubted[case.id, f"{contrast.metric}: {reason.sentence}"] = None
                continue
            if not (values := contrast_data.pairs(run, plan, contrast).values):
                continue
            estimate = judge.estimate(values, metric.form)
            reference = ExpectedValue(
                case=case.id,
                metric=contrast.metric,
                unit=metric.unit,
                value=float(f"{estimate.value:.4g}"),
                status="measured",
                date=run.started_at[:10],
                source=f"run {run.run}",
                baseline=None if metric.form is Form.ABSOLUTE else contrast.against,
                lower=-tolerance,
                upper=tolerance,
                n=estimate.n,
                fingerprint=items,
            )
            by_key.setdefault(reference.key, reference)
    return list(by_key.values()), list(doubted)


def rules(place: Path, hardware: str) -> tuple[Threshold, ...]:
    """Return the thresholds that a references file or folder has for a hardware class.

    Raise ConfigError if this hardware class has no file.
    """
    path = path_for(place, hardware)
    if not path.is_file():
        raise ConfigError(
            "no references for this hardware",
            where=str(path),
            expected=f"a file of [[reference]] tables for {hardware}",
            fix=f"scaleproof history baseline set RUN --references {place}",
        )
    return tuple(expected.threshold(hardware) for expected in load(path))
