"""Read runs with their verdicts, including runs whose program was killed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.judging import verdicts
from harness.analysis.judging.fingerprint import between, fingerprint
from harness.base.errors import SpecError
from harness.record import RunRecord, chain, store

#: Engine of launches that a training recorded by itself with ``measure_steps``. Each start of the
#: training is one run.
LIBRARY = "library"


def load(folder: Path, links: Sequence[chain.Link] | None = None) -> RunRecord:
    """Read a run from its folder or its record.json, with verdicts.

    ``links`` has the same meaning as in ``store.load``. A run writes its verdicts when it ends, so
    the verdicts of a killed run are computed here. Raise RecordError for an invalid record.
    """
    run = store.load(folder, links)
    if run.complete or run.verdicts:
        return run
    return replace(run, verdicts=verdicts.verdicts(run))


def runs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the folders of the runs below it.

    A training that records itself creates a run below its folder at every start.
    """
    is_run = not folder.is_dir() or any(
        (folder / name).is_file() for name in ("record.json", chain.FILE)
    )
    below = [] if is_run else sorted(path.parent for path in folder.glob("runs/*/*/record.json"))
    return below or [folder]


def pooled(runs: Sequence[RunRecord]) -> RunRecord:
    """Merge several starts of a training that recorded itself into one run with all launches.

    Raise SpecError for other kinds of runs, whose launches are arranged in blocks. Also raise
    SpecError for starts on different machines or software.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    for run in runs:
        if any(launch.engine != LIBRARY for launch in run.launches):
            raise SpecError(
                f"{run.run} is one of {len(runs)} runs in a folder, but it is not a start that a"
                " training recorded by itself",
                expected="one run, or a folder of starts of harness.measure_steps",
                fix="scaleproof compare RUN_A RUN_B",
            )
        unlike = between(
            {**fingerprint(first), **first.software}, {**fingerprint(run), **run.software}
        )
        if unlike:
            raise SpecError(
                f"{first.run} and {run.run} cannot be merged: {'; '.join(unlike)}",
                expected="starts on one machine with the same software",
                fix="measure_steps(results=FOLDER) writes starts to separate folders",
            )
    return replace(
        first,
        plans=tuple({plan.hash: plan for run in runs for plan in run.plans}.values()),
        described={case: answer for run in runs for case, answer in run.described.items()},
        launches=tuple(launch for run in runs for launch in run.launches),
        verdicts=(),
    )
