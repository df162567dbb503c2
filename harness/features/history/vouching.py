"""Verification that the values of a history agree with the chains of their runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.audit import audit
from harness.analysis.reading import load
from harness.base.errors import RecordError
from harness.features.history.night import Night, night_of
from harness.record import chain

#: Relative tolerance of values, which are stored with six digits.
DIGITS = 2e-6


@dataclass(frozen=True, kw_only=True)
class VerifiedNights:
    """The result of a verification.

    ``wrong`` lists (run, reason, folder) of the runs that failed the verification. ``num_gone`` is
    the number of runs that are no longer in their folder.
    """

    wrong: Sequence[tuple[str, str, Path]]
    num_gone: int


def vouched(nights: Sequence[Night], results: Path) -> VerifiedNights:
    """Compare the values of every nightly run with the chain of its run.

    This does not recompute metrics from samples. ``ingest`` did so when the run was added, and the
    chain shows that the metrics have not changed since.
    """
    wrong = []
    num_gone = 0
    for night in nights:
        folder = results / night.folder
        if not (folder / "record.json").is_file():
            num_gone += 1
        elif reason := next(_wrong(night, folder), ""):
            wrong.append((night.run, reason, folder))
    return VerifiedNights(wrong=wrong, num_gone=num_gone)


def _wrong(night: Night, folder: Path) -> Iterator[str]:
    """Yield why a nightly run cannot be verified."""
    try:
        links = chain.read(folder)
        run = load(folder)
        if not links:
            yield "it has no chain, so missing launches cannot be detected"
        yield from audit(run, folder, links)
        again = night_of(run, Path(night.folder))
    except RecordError as error:
        yield error.what
        return
    if again.run != night.run:
        yield f"its folder contains a different run, {again.run}"
    for case, kept in night.cases.items():
        known = again.cases.get(case)
        if known is None:
            yield f"its run has no case {case}"
            continue
        for name, value in kept.values.items():
            figure = known.values.get(name)
            if figure is None or not math.isclose(figure.value, value.value, rel_tol=DIGITS):
                yield f"{name} of {case} is {value.value}, but its run has a different value"
