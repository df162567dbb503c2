"""Fixtures: a session for all measured scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.cases import Catalogue, Settings
from harness.measure.progress import Progress
from harness.measure.session import Session
from tests.e2e.scripts import SCRIPTS, Measured


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    settings = Settings(fabric=False, timeline=False, nodes=(2,))
    made = Session(Catalogue(), settings, tmp_path_factory.mktemp("runs"), (), Progress())
    yield made
    made.close()


@pytest.fixture
def measured(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    monkeypatch.chdir(SCRIPTS)
    yield Measured(session)
