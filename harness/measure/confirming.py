"""Confirming: no FAIL is reported unless a fresh set of launches, sweeps or trials fails too."""

from collections.abc import Callable, Sequence

from harness.analysis.judging.verdicts import unconfirmed
from harness.record import Verdict

#: Sweeps, or trials of a kind, that are judged where nothing else is asked for.
USUAL = 8


def confirm(
    judged: Callable[[], Sequence[Verdict]], again: Callable[[Sequence[Verdict]], bool]
) -> None:
    """Measure a fresh set for as long as a FAIL waits for one.

    Args:
        judged: the verdicts so far, judged anew at each call.
        again: measures one more block, sweep or trial of the fresh set for these verdicts; False
            where there is none left to measure.
    """
    while (waiting := unconfirmed(judged())) and again(waiting):
        pass
