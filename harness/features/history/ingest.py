"""Ingestion of runs: each becomes a file of the history, from which ledger and asv results are
made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import verify_cache
from harness.analysis.reading import load
from harness.analysis.verify import refuse_unsealed
from harness.base.errors import RecordError
from harness.features.history import asv_results
from harness.features.history.night import Night, keep, locked, night_of, nights


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """One run that was added to the history. ``new`` is false if the history already had it."""

    run: str
    commit: str
    num_values: int
    machine: str
    new: bool


def ingest(
    runs: Sequence[Path], results: Path, refused: Callable[[RecordError], None] | None = None
) -> list[Ingested]:
    """Add runs to the history, in any order. A run that is added twice counts once.

    This also repairs what an interrupted call left incomplete. ``refused`` is called with the error
    of each run that cannot be added, and the other runs are added. Without ``refused``, the first
    such error is raised as RecordError after the runs before it were added.
    """
    with locked(results):
        fresh: dict[str, bool] = {}
        try:
            for folder in runs:
                try:
                    key = verify_cache.key_of(folder)
                    run = load(folder)
                    refuse_unsealed(run, folder if folder.is_dir() else folder.parent)
                    verify_cache.keep(folder, key)
                    night = night_of(run, _from(results, folder))
                except RecordError as error:
                    if refused is None:
                        raise
                    refused(error)
                    continue
                fresh[night.run] = keep(night, results)
        finally:
            all_nights = nights(results)
            commits = asv_results.write(results, all_nights)
    named = {night.run: night for night in all_nights}
    return [added for run, new in fresh.items() for added in _added(named[run], commits[run], new)]


def _from(results: Path, folder: Path) -> Path:
    """Return the path of a run relative to the results folder.

    Return its full path if it lies outside that folder.
    """
    root, place = results.resolve(), folder.resolve()
    return place.relative_to(root) if place.is_relative_to(root) else place


def _added(night: Night, commit: str, new: bool) -> list[Ingested]:
    """Return what one run added: an entry for hardware results and one for simulated results."""
    ingested = []
    for stand_in in (False, True):
        values = [case.values for case in night.cases.values() if case.stand_in is stand_in]
        if count := sum(map(len, values)):
            name = asv_results.machine(night, stand_in)
            ingested.append(
                Ingested(run=night.run, commit=commit[:8], num_values=count, machine=name, new=new)
            )
    return ingested


def summary(added: Ingested) -> str:
    """Return a line on a run that was added."""
    before = "" if added.new else " (already ingested)"
    where = f"{added.machine}, ledger {added.commit}"
    return f"{added.run}: {added.num_values} values for {where}{before}"
