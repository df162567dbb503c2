"""Verdicts on what is measured apart from plans: the fabric, and recovery from faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from harness.analysis.judging import fingerprint
from harness.analysis.judging import verdicts as verdict
from harness.analysis.judging.judge import judge
from harness.host.admission import Level
from harness.record import RunRecord
from harness.record.outcome import Reason, Status, Verdict
from harness.spec import Device
from harness.spec.metrics import Form
from harness.spec.rules import Threshold

#: Values that are judged; those after them confirm a FAIL.
FIRST = 8


@dataclass(frozen=True, kw_only=True)
class Series:
    """One thing and its values by metric, one for each launch or trial.

    ``family`` is what a rule's pattern is matched on, ``name`` where the pattern names a world.
    ``wrong`` says why nothing of it can be trusted, ``refused`` why it could not be measured.
    """

    name: str
    family: str
    world_size: int
    num_nodes: int
    values: Mapping[str, tuple[float, ...]]
    wrong: str = ""
    refused: str = ""

    def matched_by(self, rule: Threshold, run: RunRecord) -> bool:
        """Whether a rule is about this."""
        device = Device(run.settings.get("device", Device.CPU))
        return (
            rule.metric in self.values
            and fnmatchcase(self.name if "@" in rule.case else self.family, rule.case)
            and rule.device in (None, device)
            and (not rule.world or self.world_size in rule.world)
            and (not rule.nodes or self.num_nodes in rule.nodes)
            and fnmatchcase(run.machine.hardware_class, rule.hardware)
        )

    def verdicts(self, run: RunRecord) -> Iterator[Verdict]:
        """One for each rule, or one that says what is wrong."""
        if self.wrong:
            metric = next(iter(self.values))
            yield self._verdict(None, metric, Status.ERROR, Reason.INCORRECT, self.wrong)
            return
        for rule in run.thresholds:
            if self.matched_by(rule, run):
                yield self._judged(run, rule)

    def _judged(self, run: RunRecord, rule: Threshold) -> Verdict:
        values = self.values[rule.metric]
        if not values:
            why = self.refused or "not measured"
            return self._verdict(rule, rule.metric, Status.SKIP, Reason.UNSUPPORTED, why)
        first, again = values[:FIRST], values[FIRST:]
        judged = judge(first, rule, Form.ABSOLUTE)
        status, reason, detail = judged.status, judged.reason, judged.detail
        bad = [f.text for f in run.admission if f.level is Level.BAD]
        differing = fingerprint.differing(rule.fingerprint, run)
        if status in (Status.PASS, Status.FAIL) and differing:
            status, reason = Status.RECORDED, Reason.NOT_COMPARABLE
            detail = f"the bound is of another setup: {'; '.join(differing)}"
        elif status in (Status.PASS, Status.FAIL) and bad:
            status, reason = Status.INCONCLUSIVE, Reason.NOISY_HOST
            detail = f"{detail}, but noisy host: {'; '.join(bad)}"
        if status is Status.FAIL:
            second = judge(again, rule, Form.ABSOLUTE) if again else None
            status, reason, more = verdict.confirmed(run, judged, second)
            detail = f"{detail}; {more}"
        status, reason, detail = verdict.waived(run, rule, status, reason, detail)
        e = judged.estimate
        return replace(
            self._verdict(rule, rule.metric, status, reason, detail),
            waived=reason is Reason.WAIVED,
            value=e.value, low=e.low, high=e.high, n=e.n, mde=judged.mde, sd=e.sd, pairs=first,
            again=again, evidence=judged.evidence,
        )  # fmt: skip

    def _verdict(
        self, rule: Threshold | None, metric: str, status: Status, reason: Reason, detail: str
    ) -> Verdict:
        return Verdict(
            contrast=f"{metric}@{self.name}", case=self.name, case_hash="", plan="", metric=metric,
            against="nothing", rule=rule.name if rule else None, bound=rule.bound if rule else "",
            status=status, reason=reason, detail=detail, value=None, low=None, high=None, n=0,
            mde=None, pairs=(), launches=(),
        )  # fmt: skip
