"""Comparison of one case in two environments, block by block in one run, until it is decided."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.compare import Reading
from harness.analysis.judging import blockers, judge
from harness.analysis.judging.contrast_data import ContrastData, pairs, purpose_of, timed
from harness.base.errors import BusyError, LaunchError, OutOfTimeError
from harness.cases import CaseSpec, Contrast, Plan
from harness.cases.plan import Protocol
from harness.cases.recipes import versus
from harness.measure.measurer import Measurer
from harness.measure.session import Session
from harness.record import LaunchRecord, RunRecord, Status

#: Two setups are the same if the relative difference of their throughput is below SAME. ALPHA is
#: the error probability of the interval over all looks, both ends together.
SAME = 0.01
ALPHA = 0.05
#: Fewest and most blocks of a comparison; a block has two pairs.
FEWEST_BLOCKS = 3
MOST_BLOCKS = 16


class Interleaver:
    """Launches blocks of one case in several setups, all in one run."""

    def __init__(self, session: Session, case: CaseSpec, protocol: Protocol) -> None:
        self._session = session
        self._case = case
        self._protocol = protocol
        self._measurer = Measurer(session)
        self.blocks = 0

    def block(self, a: str, b: str) -> list[float]:
        """Measure one block; return log(step time in ``b`` / step time in ``a``) of its two pairs.

        Raise LaunchError if a setup cannot be measured or if the two setups train differently, and
        BusyError if the host was too busy.
        """
        (longer,) = self.beside(a, (b,))
        return longer

    def beside(self, a: str, others: Sequence[str]) -> list[list[float]]:
        """Measure setup ``a`` and several ``others`` in one block.

        Return two values for each of the other setups: log(step time in it / step time in ``a``) of
        its two pairs.
        """
        self.blocks += 1
        once = replace(self._protocol, min_blocks=1, max_blocks=1, seed=self.blocks)
        plan = _plan(self._case, a, others, once)
        plan = replace(plan, name=f"{plan.name}, block {self.blocks}")
        self._measurer.measure([plan])
        if (broken := self._measurer.broken(plan)) is not None:
            raise broken
        measured = self._session.run.bare()
        return [
            self._longer(measured, plan, contrast, (a, other))
            for contrast, other in zip(plan.contrasts, others, strict=True)
        ]

    def alike(self, a: str) -> list[float]:
        """Return log(throughput of the second / of the first launch in ``a``) for each block.

        These ratios are an A/A comparison: every block launches the case twice in ``a``.
        """
        measured = self._session.run.bare()
        first = replace(self._case, setup=a)
        logs = []
        for plan in measured.plans:
            arm = plan.arms[0]
            if arm.case != first or not plan.contrasts:
                continue
            launches = timed(measured, plan, 0, purpose_of(plan.contrasts[0].metric))
            of_arm = sorted(
                (launch for launch in launches if launch.arm == arm.name),
                key=lambda launch: launch.turn,
            )
            rates = [launch.throughput for launch in of_arm if launch.usable and launch.throughput]
            logs += [math.log(y / x) for x, y in zip(rates[::2], rates[1::2], strict=False)]
        return logs

    def _longer(
        self, measured: RunRecord, plan: Plan, contrast: Contrast, setups: tuple[str, str]
    ) -> list[float]:
        """Return log(step time in b / step time in a) of each pair of a plan.

        Raise an error with the reason if there are no pairs.
        """
        a, b = setups
        ratios = pairs(measured, plan, contrast).values
        if not ratios and plan.hash in measured.out_of_time:
            raise OutOfTimeError(
                f"the time budget ended before {b} was compared with {a}",
                where=self._case.id,
                expected="a time budget that suffices for one more block",
                fix="--time-budget 20m",
            )
        if not ratios:
            failed = self._failed()
            if failed is not None and failed.stood_still:
                raise BusyError(
                    f"the host was too busy to compare {b} with {a}: {failed.wrong[0]}",
                    where=self._case.id,
                    expected="a host without other load",
                    fix="scaleproof check",
                )
            raise LaunchError(
                f"{b} cannot be compared with {a}: {self._blame()}",
                where=self._case.id,
                expected="environments that train correctly",
                fix="scaleproof run CASE",
            )
        why = blockers.find_blocker(ContrastData.of(measured, plan, contrast))
        if (
            why is not None and why.status is not Status.INCONCLUSIVE
        ):  # INCONCLUSIVE: a pair is missing
            raise LaunchError(
                f"{b} and {a} cannot be compared: {why.sentence}",
                where=self._case.id,
                expected="two environments that train the same, and correctly",
                fix=f"scaleproof report {self._session.run.folder}",
            )
        return [-math.log(ratio) for ratio in ratios]

    def _failed(self) -> LaunchRecord | None:
        """Return the last launch that is not usable, or None."""
        failed = [launch for launch in self._session.run.launches if not launch.usable]
        return failed[-1] if failed else None

    def _blame(self) -> str:
        """Return why the last unusable launch failed."""
        failed = self._failed()
        return (
            "no launch was completed"
            if failed is None
            else [*failed.wrong, blockers.blame(failed)][0]
        )


def _plan(case: CaseSpec, a: str, others: Sequence[str], once: Protocol) -> Plan:
    """Return the plan of one block: a case in setup ``a`` and in each other setup."""
    first = replace(case, setup=a)
    plans = [
        versus(first, replace(case, setup=other), ("throughput_ratio",), protocol=once)
        for other in others
    ]
    name = f"{case.id}: {' and '.join(others)} against {a}"
    if len(plans) == 1:
        return replace(plans[0], name=name)
    subjects = [
        replace(plan.arm("b"), name=other) for plan, other in zip(plans, others, strict=True)
    ]
    contrasts = [
        replace(plan.contrasts[0], name=f"throughput_ratio@{other}/other", subject=other)
        for plan, other in zip(plans, others, strict=True)
    ]
    return replace(
        plans[0],
        name=name,
        arms=(plans[0].arm("a"), *subjects),
        contrasts=tuple(contrasts),
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The throughput of B relative to A in the same blocks.

    ``low`` and ``high`` are the ends of an interval that stays valid however often it is inspected.
    ``alike`` and its ends are the ratio and the interval of A compared with itself, from launches
    of the same blocks. They show which ratios occur without any difference.
    """

    case: str
    ratio: float
    low: float | None
    high: float | None
    num_pairs: int
    reading: Reading
    alike: float | None = None
    alike_low: float | None = None
    alike_high: float | None = None


def difference(case: str, longer: list[float]) -> Difference:
    """Return the difference between setups A and B that the pairs so far show.

    ``longer`` has one value for each pair: log(step time in B / step time in A), as
    ``Interleaver.block`` returns it.
    """
    interval = judge.t_sequence([-x for x in longer], ALPHA)
    low, high = interval.low, interval.high
    reading = Reading.UNDECIDED
    if low is not None and high is not None:
        if low > 0:
            reading = Reading.FASTER
        elif high < 0:
            reading = Reading.SLOWER
        elif -math.log1p(SAME) < low and high < math.log1p(SAME):
            reading = Reading.SAME
    ends = [None if end is None else math.exp(end) for end in (low, high)]
    return Difference(
        case=case,
        ratio=math.exp(interval.mean),
        low=ends[0],
        high=ends[1],
        num_pairs=len(longer),
        reading=reading,
    )


def beside_itself(measured: Difference, alike: Sequence[float]) -> Difference:
    """Return a difference with the A/A comparison added.

    ``alike`` has one value for each block: log(throughput of the second / of the first launch in
    A), as ``Interleaver.alike`` returns it.
    """
    if not alike:
        return measured
    interval = judge.t_sequence(alike, ALPHA)
    low, high = (None if e is None else math.exp(e) for e in (interval.low, interval.high))
    return replace(measured, alike=math.exp(interval.mean), alike_low=low, alike_high=high)


def compared(
    interleaver: Interleaver, case: str, a: str, b: str, tell: Callable[[str], None]
) -> Difference:
    """Measure blocks until the difference is decided. ``tell`` receives a line after each block."""
    longer: list[float] = []
    while True:
        try:
            longer += interleaver.block(a, b)
        except BusyError:
            if not longer:
                raise
            undecided = replace(difference(case, longer), reading=Reading.UNDECIDED)
            return beside_itself(undecided, interleaver.alike(a))
        latest = difference(case, longer)
        tell(f"{case}: B/A {latest.ratio:.4f} over {latest.num_pairs} pairs: {latest.reading}")
        done = len(longer) >= 2 * FEWEST_BLOCKS and latest.reading is not Reading.UNDECIDED
        if done or len(longer) >= 2 * MOST_BLOCKS:
            return beside_itself(latest, interleaver.alike(a))
