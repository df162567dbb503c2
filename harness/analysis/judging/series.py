"""Series: what is measured beside plans, sweeps of the fabric and what features measure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.analysis.judging.doubts import unfit_host
from harness.analysis.judging.question import Conclusion, Question
from harness.cases import Threshold, features
from harness.record import Reason, RunRecord, Status
from harness.record.fabric import swept

Values = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One thing and its values by metric, one for each sweep or trial.

    ``family`` is what a rule's pattern is matched on, ``name`` where the pattern names a world.
    ``wrong`` says why nothing of it can be trusted, ``refused`` why it could not be measured.
    ``first`` and ``again`` are as in a Question.
    """

    name: str
    family: str
    world_size: int
    num_nodes: int
    first: Values
    again: Values
    wrong: str = ""
    refused: str = ""

    def matched_by(self, rule: Threshold, run: RunRecord) -> bool:
        """Whether a rule is about this."""
        return (
            rule.metric in self.first
            and fnmatchcase(self.name if "@" in rule.case else self.family, rule.case)
            and rule.applies_on(run.settings.device, self.world_size, self.num_nodes)
            and rule.holds_on(run.machine, self.num_nodes)
        )

    def questions(self, run: RunRecord) -> Iterator[tuple[Question, Threshold | None]]:
        """One for each rule about it; a single one, without a rule, where something is wrong."""
        if self.wrong:
            yield self._question(run, next(iter(self.first))), None
            return
        for rule in run.thresholds:
            if self.matched_by(rule, run):
                yield self._question(run, rule.metric), rule

    def _question(self, run: RunRecord, metric: str) -> Question:
        obstacle = None
        if self.wrong:
            obstacle = Conclusion(Status.ERROR, Reason.INCORRECT, self.wrong)
        elif not self.first[metric]:
            reason = self.refused or "not measured"
            obstacle = Conclusion(Status.SKIP, Reason.UNSUPPORTED, reason)
        return Question(
            name=f"{metric}@{self.name}",
            case=self.name,
            metric=metric,
            against="nothing",
            first=self.first[metric],
            again=self.again[metric],
            obstacle=obstacle,
            doubt=unfit_host(run),
        )


def series(run: RunRecord) -> list[Series]:
    """All that a run measured beside its plans: the fabric first, as it was measured first."""
    of_features = (course for module in features.modules("SERIES") for course in module.series(run))
    return [*_fabric(run), *of_features]


def _fabric(run: RunRecord) -> Iterator[Series]:
    """The sweep that rules on ``fabric/OPERATION`` are held against."""
    fresh = {
        (sweep.nodes, sweep.network, sweep.operation): sweep
        for sweep in swept(run.fabric, attempt=1)
    }
    for sweep in swept(run.fabric, attempt=0):
        again = fresh.get((sweep.nodes, sweep.network, sweep.operation))
        right = sweep.right and (again is None or again.right)
        yield Series(
            name=f"fabric/{sweep.operation}@{sweep.world}{sweep.network}",
            family=f"fabric/{sweep.operation}",
            world_size=sum(sweep.nodes),
            num_nodes=len(sweep.nodes),
            first={"bus_bandwidth": sweep.bus_bps(), "collective_latency": sweep.latency_s},
            again={
                "bus_bandwidth": again.bus_bps() if again else (),
                "collective_latency": again.latency_s if again else (),
            },
            wrong="" if right else "a rank got a wrong result: this network cannot be trusted",
            refused=sweep.refused,
        )
