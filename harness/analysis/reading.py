"""Reading a run as its readers want to see it: judged, also where its program was killed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.judging import verdicts
from harness.analysis.judging.fingerprint import between, fingerprint
from harness.base.errors import SpecError
from harness.record import RunRecord, chain, store

#: The engine of launches that a training recorded by itself, one a run.
LIBRARY = "library"


def load(folder: Path, links: Sequence[chain.Link] | None = None) -> RunRecord:
    """A run's folder, or its record.json; RecordError says what is wrong with it. ``links`` as of
    ``store.load``.

    Verdicts are written when a run ends, in whatever way it knows of. Of one that was killed they
    follow from its launches, and from what its plans ask where there is none yet.
    """
    run = store.load(folder, links)
    if run.complete or run.verdicts:
        return run
    return replace(run, verdicts=verdicts.verdicts(run))


def runs_in(folder: Path) -> list[Path]:
    """The run that lies there, or those below it: a training that records itself leaves one for
    every start.
    """
    is_run = not folder.is_dir() or any(
        (folder / name).is_file() for name in ("record.json", chain.FILE)
    )
    below = [] if is_run else sorted(path.parent for path in folder.glob("runs/*/*/record.json"))
    return below or [folder]


def pooled(runs: Sequence[RunRecord]) -> RunRecord:
    """Several starts of trainings that recorded themselves as one run, with the launches of all.

    SpecError for other runs: their launches are in blocks, and belong together as they are; and for
    starts on unlike machines or software.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    for run in runs:
        if any(launch.engine != LIBRARY for launch in run.launches):
            raise SpecError(
                f"{run.run} is one of {len(runs)} runs in a folder, and no start that a training"
                " recorded by itself",
                expected="one run, or a folder of starts of harness.measure_steps",
                fix="scaleproof compare RUN_A RUN_B",
            )
        unlike = between(
            {**fingerprint(first), **first.software}, {**fingerprint(run), **run.software}
        )
        if unlike:
            raise SpecError(
                f"{first.run} and {run.run} are no starts of one kind: {'; '.join(unlike)}",
                expected="starts on one machine, with one software",
                fix="measure_steps(results=FOLDER) keeps starts apart",
            )
    return replace(
        first,
        plans=tuple({plan.hash: plan for run in runs for plan in run.plans}.values()),
        described={case: answer for run in runs for case, answer in run.described.items()},
        launches=tuple(launch for run in runs for launch in run.launches),
        verdicts=(),
    )
