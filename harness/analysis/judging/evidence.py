"""Evidence: the launches that one contrast rests on, gathered once for all who look at them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.analysis.judging.pairs import purpose_of
from harness.cases import Arm, CaseSpec, Contrast, Plan
from harness.record import LaunchRecord, Purpose, RunRecord


@dataclass(frozen=True)
class ContrastData:
    """A contrast of a plan in a run, with the launches of its arms, both attempts together.

    ``pilots`` are shared between plans; ``launches`` are of the purpose that its metric is read
    from.
    """

    run: RunRecord
    plan: Plan
    contrast: Contrast
    pilots: Sequence[LaunchRecord]
    launches: Sequence[LaunchRecord]

    @classmethod
    def of(cls, run: RunRecord, plan: Plan, contrast: Contrast) -> "ContrastData":
        names = {contrast.subject, *contrast.baseline}
        purpose = purpose_of(contrast.metric)
        of_plan = run.by_plan.get(plan.hash, ())
        return cls(
            run=run,
            plan=plan,
            contrast=contrast,
            pilots=run.pilots_of({plan.arm(name).case.hash for name in names}),
            launches=[
                launch for launch in of_plan if launch.purpose is purpose and launch.arm in names
            ],
        )

    @cached_property
    def arms(self) -> Sequence[Arm]:
        """The subject's arm, then those of the baseline."""
        return [self.plan.arm(name) for name in (self.contrast.subject, *self.contrast.baseline)]

    @property
    def subject(self) -> CaseSpec:
        """The case that is judged."""
        return self.arms[0].case

    @property
    def all_launches(self) -> Sequence[LaunchRecord]:
        """The launches that it rests on: pilots, then timed ones."""
        return [*self.pilots, *self.launches]

    @property
    def slowed_on_purpose(self) -> bool:
        """Whether stragglers are planted: their quota is no fault of the host."""
        return any(arm.case.slowed for arm in self.arms)

    def timed_of(self, names: Iterable[str]) -> list[LaunchRecord]:
        """The timed launches of some of the plan's arms."""
        wanted = set(names)
        of_plan = self.run.by_plan.get(self.plan.hash, ())
        return [
            launch for launch in of_plan if launch.purpose is Purpose.TIMED and launch.arm in wanted
        ]

    def pilots_of(self, names: Iterable[str]) -> Sequence[LaunchRecord]:
        """The pilots of some of the plan's arms."""
        return self.run.pilots_of({self.plan.arm(name).case.hash for name in names})
