"""A session closes its worlds even if its start fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cases import Catalogue, Settings
from harness.measure.progress import Progress
from harness.measure.session import Session


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
