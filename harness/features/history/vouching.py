"""Whether what a history says can still be followed back to the chains of its runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.audit import audit
from harness.analysis.reading import load
from harness.base.errors import RecordError
from harness.features.history.night import Night, night_of
from harness.record import chain

#: Values are kept to six digits.
DIGITS = 2e-6


@dataclass(frozen=True, kw_only=True)
class VerifiedNights:
    """``wrong``: run, why nobody vouches for its night, and its folder. ``num_gone`` runs are no
    longer where they were.
    """

    wrong: Sequence[tuple[str, str, Path]]
    num_gone: int


def vouched(nights: Sequence[Night], results: Path) -> VerifiedNights:
    """Every night against the chain of its run. What a run's samples give was asked by ``ingest``;
    a chain seals what was made of them.
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
    try:
        links = chain.read(folder)
        run = load(folder)
        if not links:
            yield "it has no chain: whether launches were left out cannot be said"
        yield from audit(run, folder, links)
        again = night_of(run, Path(night.folder))
    except RecordError as error:
        yield error.what
        return
    if again.run != night.run:
        yield f"its folder holds another run, {again.run}"
    for case, kept in night.cases.items():
        known = again.cases.get(case)
        if known is None:
            yield f"its run has no {case}"
            continue
        for name, value in kept.values.items():
            figure = known.values.get(name)
            if figure is None or not math.isclose(figure.value, value.value, rel_tol=DIGITS):
                yield f"{name} of {case} is {value.value}, its run has another figure"
