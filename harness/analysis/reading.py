"""Reading a run as its readers want to see it: judged, also where its program was killed."""

from dataclasses import replace
from pathlib import Path

from harness.analysis.judging import verdicts
from harness.record import RunRecord, store


def load(folder: Path) -> RunRecord:
    """A run's folder, or its record.json; RecordError says what is wrong with it.

    Verdicts are written when a run ends, in whatever way it knows of. Of one that was killed they
    follow from its launches, and from what its plans ask where there is none yet.
    """
    run = store.load(folder)
    if run.complete or run.verdicts:
        return run
    return replace(run, verdicts=verdicts.verdicts(run))
