"""One flake does not end a plan of a night: what passes is launched once more, said, and kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.judging import verdicts
from harness.cases import Catalogue
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Cause, LaunchRecord, LaunchStatus, Purpose, RunRecord


def broken(launch: LaunchRecord, kind: str, name: str) -> LaunchRecord:
    cause = Cause(rank=1, kind=kind, message=f"rank 1: {kind}", phase="steady", step=3, sure=True)
    return replace(
        launch, status=LaunchStatus.FAILED, cause=cause, steps=None, ranks=(), launch=name
    )


@pytest.fixture
def session(sample_run: RunRecord, tmp_path: Path) -> Session:
    found = Session(Catalogue(), sample_run.settings, tmp_path, (), Progress())
    found.run.announce(sample_run.plans)
    found.run.described.update(sample_run.described)
    return found


@pytest.fixture
def timed(sample_run: RunRecord) -> LaunchRecord:
    return next(x for x in sample_run.launches if x.purpose is Purpose.TIMED)


@pytest.mark.parametrize("kind", ["node", "signal", "hang", "late", "peer"])
def test_what_passes_is_launched_once_more_and_only_once(
    session: Session, timed: LaunchRecord, kind: str
) -> None:
    (first,) = session.run.enter([broken(timed, kind, "x-1")])
    assert first.purpose is Purpose.FLAKED and first.discarded
    assert session.run.notes[-1] == f"x-1: rank 1: {kind}; launched once more"
    (second,) = session.run.enter([broken(timed, kind, "x-2")])
    if kind == "node":  # however often that comes, it is no case's fault
        assert second.purpose is Purpose.FLAKED and second.intended is Purpose.TIMED
        assert session.run.notes[-1] == "x-2: rank 1: node; its plan ends, --resume goes on"
    else:
        assert second.purpose is Purpose.TIMED and not second.discarded
    assert [x.launch for x in session.run.launches] == ["x-1", "x-2"], "both are kept"


@pytest.mark.parametrize("kind", ["exception", "exit", "memory", "collective"])
def test_what_comes_again_is_an_error_at_once(
    session: Session, timed: LaunchRecord, kind: str
) -> None:
    (launch,) = session.run.enter([broken(timed, kind, "x-1")])
    assert launch.purpose is Purpose.TIMED


def test_a_flake_that_was_launched_once_more_changes_no_verdict(
    sample_run: RunRecord, timed: LaunchRecord
) -> None:
    flake = replace(broken(timed, "node", "993540-x-0999"), purpose=Purpose.FLAKED)
    both = replace(sample_run, launches=(flake, *sample_run.launches))
    assert verdicts.verdicts(both) == verdicts.verdicts(sample_run)
    twice = replace(sample_run, launches=(broken(timed, "node", "993540-x-0999"), *both.launches))
    assert verdicts.verdicts(twice) != verdicts.verdicts(sample_run), "a second one counts"
