"""The audit reports each way in which a record cannot be one run as it happened.

``tests/record/test_doctored.py`` edits files; these tests construct records that cannot occur.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from harness.analysis.audit import audit, strays, twice
from harness.base.documents import to_doc
from harness.record import LaunchRecord, Purpose, RunRecord, chain
from harness.record.chain import Kind, Link
from harness.record.store import load


def edited(run: RunRecord, place: int, **fields: object) -> RunRecord:
    """Return the run with fields of one launch changed."""
    launches = list(run.launches)
    launches[place] = replace(launches[place], **fields)  # type: ignore[arg-type]
    return replace(run, launches=tuple(launches))


def timed(run: RunRecord) -> list[int]:
    return [i for i, x in enumerate(run.launches) if x.purpose is Purpose.TIMED]


def earlier(run: RunRecord) -> RunRecord:
    place = timed(run)[1]
    began = datetime.datetime.fromisoformat(run.launches[place].started_at)
    return edited(run, place, started_at=(began - datetime.timedelta(hours=1)).isoformat())


def copied(run: RunRecord) -> RunRecord:
    first, second = timed(run)[:2]
    source: LaunchRecord = run.launches[first]
    ranks = run.launches[second].ranks
    taken = (replace(ranks[0], samples_sha256=source.ranks[0].samples_sha256), *ranks[1:])
    return edited(run, second, ranks=taken)


def hurried(run: RunRecord) -> RunRecord:
    return edited(run, timed(run)[0], wall_s=1e-3)


def postponed(run: RunRecord) -> RunRecord:
    """All launches a month later, while the entries of the chain keep their times."""
    month = datetime.timedelta(days=30)
    later = [
        replace(x, started_at=(datetime.datetime.fromisoformat(x.started_at) + month).isoformat())
        for x in run.launches
    ]
    return replace(run, launches=tuple(later))


def redated(run: RunRecord) -> RunRecord:
    """The run and its launches a month earlier, as if the chain had been rebuilt as well."""
    month = datetime.timedelta(days=30)

    def back(text: str) -> str:
        return (datetime.datetime.fromisoformat(text) - month).isoformat()

    launches = []
    for launch in run.launches:
        at_ns = round(1e9 * datetime.datetime.fromisoformat(launch.started_at).timestamp())
        ranks = tuple(replace(rank, window_ns=(at_ns, at_ns + 10**8)) for rank in launch.ranks)
        launches.append(replace(launch, started_at=back(launch.started_at), ranks=ranks))
    return replace(run, started_at=back(run.started_at), launches=tuple(launches))


def shortened(run: RunRecord) -> RunRecord:
    return replace(run, elapsed_s=run.elapsed_s / 2)


def dropped(run: RunRecord) -> RunRecord:
    place = timed(run)[0]
    return replace(run, launches=(*run.launches[:place], *run.launches[place + 1 :]))


def test_an_unchanged_run_has_no_findings(sample: Path, sample_run: RunRecord) -> None:
    assert audit(sample_run, sample, chain.read(sample)) == []
    assert strays(sample_run) == []


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (earlier, "began before the previous launch had ended"),
        (copied, "has the samples of another rank"),
        (hurried, "its steps take"),
        (dropped, "is not in the record"),
        (redated, "began on another day than its steps"),
        (shortened, "but the run took"),
        (postponed, "was entered into the chain at"),
    ],
)
def test_an_impossible_record_is_reported(
    edit: Callable[[RunRecord], RunRecord], why: str, sample: Path, sample_run: RunRecord
) -> None:
    assert any(why in text for text in audit(edit(sample_run), sample, chain.read(sample)))


def resumed(run: RunRecord, links: tuple[Link, ...]) -> tuple[RunRecord, list[Link]]:
    """Return the run and its chain as if it had been interrupted before its last launch."""
    doc = json.loads(json.dumps(to_doc(run)))
    sitting = {"machine": doc["machine"], "cut": []}
    state = {name: doc[name] for name in chain.STATED}
    bodies = [(link.kind, link.at, link.body) for link in links]
    sealed = {**bodies[0][2], "facts": doc["facts"]}
    bodies = [
        (Kind.SEALED, links[0].at, sealed),
        *bodies[1:-2],
        (Kind.SITTING, links[-2].at, sitting),
        *bodies[-2:-1],
        (Kind.ENDED, links[-1].at, state),
    ]
    chained: list[Link] = []
    for kind, at, body in bodies:
        before = chained[-1].hash if chained else ""
        chained.append(Link(number=len(chained), kind=kind, at=at, before=before, body=body))
    return replace(run, head=chained[-1].hash), chained


#: Another value for each field of a record. ``verify`` recomputes the verdicts and windows.
OTHER: dict[str, Callable[[RunRecord], object]] = {
    "schema": lambda run: 1,
    "run": lambda run: "another",
    "started_at": lambda run: "2026-01-01T00:00:00+00:00",
    "complete": lambda run: False,
    "machine": lambda run: replace(run.machine, host="another"),
    "software": lambda run: {**run.software, "torch": "2.99"},
    "settings": lambda run: replace(run.settings, strict=not run.settings.strict),
    "environment": lambda run: {**run.environment, "OMP_NUM_THREADS": "1"},
    "plans": lambda run: (replace(run.plans[0], name="another"),),
    "described": lambda run: dict([*run.described.items()][1:]),
    "launches": lambda run: run.launches[:-1],
    "thresholds": lambda run: run.thresholds[1:],
    "notes": lambda run: (*run.notes, "another"),
    "elapsed_s": lambda run: run.elapsed_s + 1.0,
    "device_s": lambda run: run.device_s + 1.0,
    "nodes": lambda run: (run.machine, run.machine),
    "admission": lambda run: run.admission[1:],
    "launch_sd": lambda run: 0.5,
    "out_of_time": lambda run: ("another",),
    "blocks": lambda run: run.blocks[1:],
    "setups": lambda run: {"another": "setup"},
    "facts": lambda run: {"host": {}},
    "head": lambda run: "0" * 64,
    "offered": lambda run: {"model": ("another",)},
}
UNTRIED = {"verdicts", "windows", "fabric", "recoveries", "suspects", "played"}


def test_every_field_of_a_record_is_tried() -> None:
    assert {field.name for field in fields(RunRecord)} == OTHER.keys() | UNTRIED


@pytest.mark.parametrize("name", OTHER)
def test_a_changed_field_of_a_resumed_run_is_reported(
    name: str, sample: Path, sample_run: RunRecord
) -> None:
    run, links = resumed(sample_run, chain.read(sample))
    assert audit(run, sample, links) == []
    assert audit(replace(run, **{name: OTHER[name](run)}), sample, links)  # type: ignore[arg-type]


def test_a_copy_of_a_run_is_no_second_measurement(sample: Path, sample_run: RunRecord) -> None:
    """The copy is recognized under any name and any date."""
    copy = replace(sample_run, run="another", started_at="2027-01-01T00:00:00+00:00", head="0")
    again = load(sample.with_name("ddp-nano-again"))
    assert "has the samples of" in twice(copy, sample_run) and not twice(again, sample_run)


def test_a_launch_without_a_plan_is_reported(sample_run: RunRecord) -> None:
    place = timed(sample_run)[0]
    (stray,) = strays(edited(sample_run, place, arm="another"))
    assert sample_run.launches[place].launch in stray
