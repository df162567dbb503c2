"""Reading a run as its readers want to see it: judged, also where its program was killed."""

from dataclasses import replace
from pathlib import Path

from harness.analysis.judging import verdicts
from harness.record import RunRecord, store


def load(folder: Path) -> RunRecord:
    """A run's folder, or its record.json; RecordError says what is wrong with it.

    Verdicts are written when a run ends, in whatever way it knows of. Of one that was killed they
    follow from its launches.
    """
    run = store.load(folder)
    if run.complete or run.verdicts or not (run.launches or run.fabric or run.recoveries):
        return run
    return replace(run, verdicts=verdicts.verdicts(run))
