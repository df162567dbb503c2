"""What sweeps of the fabric came to: their figures by operation, and verdicts on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from harness import verdict
from harness.fabric import LATENCY_BYTES, Row
from harness.judge import judge
from harness.outcome import Reason, Status, Verdict
from harness.record import RunRecord
from harness.spec import Device
from harness.thresholds import Threshold
from harness.units import Form

#: Sweeps whose values are judged; those after them confirm a FAIL.
FIRST = 8
METRICS = ("bus_bandwidth", "collective_latency")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One operation over one world: its rows of every sweep."""

    nodes: tuple[int, ...]
    network: str
    operation: str
    rows: tuple[Row, ...]

    @property
    def world(self) -> str:
        """``2x4``, ``1+2`` or ``4``."""
        same = len(set(self.nodes)) == 1
        if len(self.nodes) == 1:
            return str(self.nodes[0])
        return f"{len(self.nodes)}x{self.nodes[0]}" if same else "+".join(map(str, self.nodes))

    @property
    def name(self) -> str:
        """``fabric/all_reduce@2x1+emulated.rate_mbit=100``"""
        return f"fabric/{self.operation}@{self.world}{self.network}"

    @property
    def right(self) -> bool:
        """Whether every rank got what it should, every time."""
        return all(r.right or r.refused for r in self.rows)

    def values(self, metric: str, payload: int | None = None) -> tuple[float, ...]:
        """One value a sweep: B/s at the largest (or this) payload, or s at the smallest."""
        sized = [r for r in self.rows if r.time_s is not None]
        if metric == "collective_latency":
            small = [r.time_s for r in sized if r.payload_bytes <= LATENCY_BYTES]
            return tuple(t for t in small if t is not None)
        largest = payload or max((r.payload_bytes for r in sized), default=0)
        return tuple(r.bus_bps or 0.0 for r in sized if r.payload_bytes == largest)


def series(rows: Sequence[Row]) -> list[Series]:
    """The rows by world, network and operation, in the order of the sweeps."""
    found: dict[tuple[tuple[int, ...], str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.nodes, row.network, row.operation), []).append(row)
    return [
        Series(nodes=nodes, network=network, operation=operation, rows=tuple(own))
        for (nodes, network, operation), own in found.items()
    ]


def matches(rule: Threshold, found: Series, run: RunRecord) -> bool:
    """Whether a rule is about this operation on this world: its case is ``fabric/all_reduce``."""
    device = Device(run.settings.get("device", Device.CPU))
    return (
        rule.metric in METRICS
        and fnmatchcase(found.name if "@" in rule.case else f"fabric/{found.operation}", rule.case)
        and rule.device in (None, device)
        and (not rule.world or sum(found.nodes) in rule.world)
        and (not rule.nodes or len(found.nodes) in rule.nodes)
        and fnmatchcase(run.machine.hardware_class, rule.hardware)
    )


def all_verdicts(run: RunRecord) -> tuple[Verdict, ...]:
    """Every verdict of a record, recomputed from it: on its fabric, then on its plans."""
    return (*verdicts(run), *verdict.verdicts(run))


def verdicts(run: RunRecord) -> Iterator[Verdict]:
    """A verdict for each rule on each series that it matches, and one for each wrong operation."""
    for found in series(run.fabric):
        rules = [t for t in run.thresholds if matches(t, found, run)]
        if not found.right:
            detail = "a rank did not get what it should: nothing over this fabric can be trusted"
            yield _verdict(found, None, "bus_bandwidth", Status.ERROR, Reason.INCORRECT, detail)
            continue
        for rule in rules:
            yield _judged(run, found, rule)


def _judged(run: RunRecord, found: Series, rule: Threshold) -> Verdict:
    values = found.values(rule.metric)
    if not values:
        why = next((r.refused for r in found.rows if r.refused), "not measured")
        return _verdict(found, rule, rule.metric, Status.SKIP, Reason.UNSUPPORTED, why)
    first, again = values[:FIRST], values[FIRST:]
    judged = judge(first, rule, Form.ABSOLUTE)
    status, reason, detail = judged.status, judged.reason, judged.detail
    if status is Status.FAIL:
        second = judge(again, rule, Form.ABSOLUTE) if again else None
        status, reason, more = verdict.confirmed(run, judged, second)
        detail = f"{detail}; {more}"
    e = judged.estimate
    made = _verdict(found, rule, rule.metric, status, reason, detail)
    return replace(
        made, value=e.value, low=e.low, high=e.high, n=e.n, mde=judged.mde, sd=e.sd, pairs=first,
        again=again, evidence=judged.evidence,
    )  # fmt: skip


def _verdict(
    found: Series,
    rule: Threshold | None,
    metric: str,
    status: Status,
    reason: Reason,
    detail: str,
) -> Verdict:
    return Verdict(
        contrast=f"{metric}@{found.operation}", case=found.name, case_hash="", plan="",
        metric=metric, against="nothing", rule=rule.name if rule else None,
        bound=rule.bound if rule else "", status=status, reason=reason, detail=detail,
        value=None, low=None, high=None, n=0, mde=None, pairs=(), launches=(),
    )  # fmt: skip
