"""Interleaving: one case in two environments, block by block, until their difference is decided."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.analysis.compare import Reading
from harness.analysis.judging import obstacles, sequential
from harness.analysis.judging.pairs import pairs
from harness.base.errors import BusyError, LaunchError
from harness.cases import CaseSpec
from harness.cases.plan import Protocol
from harness.cases.recipes import versus
from harness.measure.measurer import Measurer
from harness.measure.session import Session
from harness.record import LaunchRecord

#: A difference within this is none; one interval at all looks, both ends together.
SAME, ALPHA = 0.01, 0.05
#: Blocks of two pairs, at least and at most.
FEWEST, MOST = 3, 16


class Interleaver:
    """Launches blocks of one case in two setups, all of them in one run."""

    def __init__(self, session: Session, case: CaseSpec, protocol: Protocol) -> None:
        self._session, self._case, self._protocol = session, case, protocol
        self._measurer = Measurer(session)
        self.blocks = 0

    def block(self, a: str, b: str) -> list[float]:
        """Logarithms of how much longer a step takes in ``b`` than in ``a``: two pairs.

        LaunchError if one of them cannot be measured, BusyError if the host was too busy for it.
        """
        self.blocks += 1
        once = replace(self._protocol, min_blocks=1, max_blocks=1, seed=self.blocks)
        first, second = (replace(self._case, setup=name) for name in (a, b))
        plan = versus(first, second, ("throughput_ratio",), protocol=once)
        plan = replace(plan, name=f"{self._case.id}: {b} against {a}, block {self.blocks}")
        self._measurer.measure([plan])
        if (broken := self._measurer.broken(plan)) is not None:
            raise broken
        ratios = pairs(self._session.run.bare(), plan, plan.contrasts[0]).values
        if not ratios:
            failed = self._failed()
            if failed is not None and failed.stood_still:
                raise BusyError(
                    f"the host was too busy to measure {b} beside {a}: {failed.wrong[0]}",
                    where=self._case.id,
                    expected="a quieter moment",
                    fix="scaleproof doctor",
                )
            raise LaunchError(
                f"{b} cannot be measured beside {a}: {self._blame()}",
                where=self._case.id,
                expected="environments that train correctly",
                fix="scaleproof run CASE",
            )
        return [-math.log(ratio) for ratio in ratios]

    def _failed(self) -> LaunchRecord | None:
        """The last launch that is no evidence."""
        failed = [x for x in self._session.run.launches if not x.usable]
        return failed[-1] if failed else None

    def _blame(self) -> str:
        failed = self._failed()
        return "no launch ended" if failed is None else [*failed.wrong, obstacles.blame(failed)][0]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Throughput of B over A in the same blocks, with an interval that holds at all looks."""

    case: str
    ratio: float
    low: float | None
    high: float | None
    num_pairs: int
    reading: Reading


def difference(case: str, longer: list[float]) -> Difference:
    """What the pairs so far say; ``longer`` as of ``Interleaver.block``."""
    interval = sequential.t_sequence([-x for x in longer], ALPHA)
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


def compared(
    interleaver: Interleaver, case: str, a: str, b: str, told: Callable[[str], None]
) -> Difference:
    """Blocks until the difference is decided, ``MOST`` at most. ``told`` gets a line for each."""
    longer: list[float] = []
    while True:
        longer += interleaver.block(a, b)
        latest = difference(case, longer)
        told(f"{case}: B/A {latest.ratio:.4f} over {latest.num_pairs} pairs: {latest.reading}")
        done = len(longer) >= 2 * FEWEST and latest.reading is not Reading.UNDECIDED
        if done or len(longer) >= 2 * MOST:
            return latest
