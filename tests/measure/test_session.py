"""A session closes its worlds even if its start fails, and verifies a long run once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import verify_cache
from harness.analysis.verify import unsealed
from harness.cases import Catalogue, Settings
from harness.measure import session as sessions
from harness.measure.progress import Progress
from harness.measure.run import Run
from harness.measure.session import Session
from harness.record import RunRecord, Status


def test_an_interrupt_during_warm_up_closes_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress()
    session = Session(Catalogue(), Settings(), tmp_path, (), progress)
    closed: list[bool] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "warm", interrupted)
    monkeypatch.setattr(session.bench.worlds, "close", lambda: closed.append(True))
    with pytest.raises(KeyboardInterrupt), session:
        pass
    assert closed == [True]


def test_a_run_with_many_launches_is_verified_for_its_readers(
    tmp_path: Path, copy: Path, sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sessions, "MANY", len(sample_run.launches))
    session = Session(Catalogue(), Settings(), tmp_path, (), Progress())
    monkeypatch.setattr(Run, "folder", copy)
    for complete in (False, True):
        monkeypatch.setattr(session.run, "save", lambda complete: sample_run)
        session.save(complete=complete)
        assert verify_cache.known(verify_cache.key_of(copy)) is complete
    session.close()


def test_a_run_that_was_stopped_at_once_claims_nothing(
    sample_run: RunRecord, tmp_path: Path
) -> None:
    """Without a chain, a figure in its verdicts would be claimed although nothing was measured."""
    waiting = [
        replace(v, status=Status.INCONCLUSIVE, value=None, low=None, high=None)
        for v in sample_run.verdicts
    ]
    empty = replace(sample_run, launches=(), fabric=(), complete=False, verdicts=tuple(waiting))
    assert unsealed(empty, tmp_path, ()) == ""
    for claimed in (
        replace(empty, verdicts=(replace(waiting[0], value=0.95),)),
        replace(empty, verdicts=(replace(waiting[0], status=Status.PASS),)),
        replace(empty, complete=True),
        replace(empty, launches=sample_run.launches),
    ):
        assert "no chain" in unsealed(claimed, tmp_path, ())
