"""Earlier runs of the same cases in the same folder, so that repeating a run until it passes shows.

A single run passes wrongly at most once in twenty. The best of several runs does more often.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from harness.analysis.results import required
from harness.record import RunRecord, Status

#: Largest number of earlier runs that are read, newest first.
MOST = 50


class _Verdict(msgspec.Struct):
    """The fields of a verdict that are compared."""

    case_hash: str
    metric: str
    against: str
    status: str
    value: float | None = None
    bound: str = ""
    rule: str | None = None


class _Record(msgspec.Struct):
    """The part of a record that is read; the decoder skips everything else."""

    started_at: str
    complete: bool = True
    verdicts: list[_Verdict] = msgspec.field(default_factory=list)


def sentences(run: RunRecord, folder: Path) -> Iterator[str]:
    """Yield a sentence for each PASS of a case that did not pass in all earlier runs of the folder.

    Runs are compared if they judged the same case, metric and baseline by the same bound.
    """
    earlier = list(_earlier(run, folder))
    for result in required(run):
        before = [
            (verdict.status, record.complete)
            for record in earlier
            for verdict in record.verdicts
            if (verdict.case_hash, verdict.metric, verdict.against, verdict.bound)
            == (result.case_hash, result.metric, result.against, result.bound)
        ]
        passed = sum(status == Status.PASS for status, _ in before)
        stopped = sum(status != Status.PASS and not complete for status, complete in before)
        if result.status is Status.PASS and passed < len(before):
            interrupted = f", {stopped} of the others interrupted" if stopped else ""
            yield (
                f"run {len(before) + 1} of {result.case} in this folder: {passed} of the"
                f" {len(before)} before PASS{interrupted}"
            )


def values(run: RunRecord, folder: Path) -> Mapping[tuple[str, str, str], list[float]]:
    """Return the values of earlier runs in the folder, oldest first.

    The keys are the hash of a case, a metric and its baseline.
    """
    by_figure: dict[tuple[str, str, str], list[float]] = {}
    for record in sorted(_earlier(run, folder), key=lambda record: record.started_at):
        # Several thresholds may judge the same value.
        of_run = {
            (verdict.case_hash, verdict.metric, verdict.against): verdict.value
            for verdict in record.verdicts
            if verdict.value is not None
        }
        for key, value in of_run.items():
            by_figure.setdefault(key, []).append(value)
    return by_figure


def _earlier(run: RunRecord, folder: Path) -> Iterator[_Record]:
    """Yield the records beside this one that began before it, at most ``MOST`` of them."""
    paths = sorted(folder.resolve().parent.glob("*/record.json"), reverse=True)
    for path in paths[: MOST + 1]:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError):
            continue  # commands that read this run report what is wrong with it
        if record.started_at < run.started_at:
            yield record
