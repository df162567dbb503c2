"""Confirmation of FAILs: a FAIL is reported only if a fresh set of measurements fails too."""

from collections.abc import Callable, Sequence

from harness.analysis.judging.verdicts import unconfirmed
from harness.record import Verdict

#: Default number of judged sweeps, and of judged trials of each kind.
USUAL = 8


def confirm(
    judged: Callable[[], Sequence[Verdict]], again: Callable[[Sequence[Verdict]], bool]
) -> None:
    """Measure a fresh set of launches until no FAIL needs confirmation or none can be measured.

    Args:
        judged: returns the verdicts so far, computed again at each call.
        again: measures one more block, sweep or trial of the fresh set for these verdicts; returns
            False if none is left to measure.
    """
    while (waiting := unconfirmed(judged())) and again(waiting):
        pass
