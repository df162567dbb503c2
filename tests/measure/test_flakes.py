"""A transient failure does not end a plan: the launch is repeated once, reported, and recorded."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.analysis.audit import audit, cut_off
from harness.analysis.judging import verdicts
from harness.base.errors import RetryableError
from harness.cases import CaseSpec, Catalogue, Device, Site
from harness.measure.measurer import moment
from harness.measure.order import Order
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.measure.sweeper import Sweeper
from harness.record import Cause, LaunchRecord, LaunchStatus, Purpose, Row, RunRecord, chain


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
    if kind == "node":  # a lost node is never the fault of the case
        assert second.purpose is Purpose.FLAKED and second.intended is Purpose.TIMED
        assert (
            session.run.notes[-1] == "x-2: rank 1: node; its plan ends; --resume continues the plan"
        )
    else:
        assert second.purpose is Purpose.TIMED and not second.discarded
    assert [x.launch for x in session.run.launches] == ["x-1", "x-2"], "both are kept"


@pytest.mark.parametrize("kind", ["exception", "exit", "memory", "collective"])
def test_a_reproducible_failure_is_an_error_at_once(
    session: Session, timed: LaunchRecord, kind: str
) -> None:
    (launch,) = session.run.enter([broken(timed, kind, "x-1")])
    assert launch.purpose is Purpose.TIMED


def test_a_repeated_flake_changes_no_verdict(sample_run: RunRecord, timed: LaunchRecord) -> None:
    flake = replace(broken(timed, "node", "993540-x-0999"), purpose=Purpose.FLAKED)
    both = replace(sample_run, launches=(flake, *sample_run.launches))
    assert verdicts.verdicts(both) == verdicts.verdicts(sample_run)
    twice = replace(sample_run, launches=(broken(timed, "node", "993540-x-0999"), *both.launches))
    assert verdicts.verdicts(twice) != verdicts.verdicts(sample_run), "a second one counts"


def test_a_failed_sweep_is_repeated_and_its_number_is_not_missing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed rank breaks the sweep; a second failure would be attributed to the network."""
    rows: list[Row] = []

    def sweep(case: CaseSpec, folder: Path, only: str = "") -> list[Row]:
        session.bench.broken["fabric-2-1"] = "rank 1: signal 9"
        if not session.run.notes:
            raise RetryableError("the fabric sweep broke: rank 1: signal 9")
        session.bench.broken.clear()
        return rows

    monkeypatch.setattr(session, "ready", lambda: None)
    monkeypatch.setattr(session.bench, "sweep", sweep)
    session.run.notes.clear()
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    Sweeper(session).sweep(site, {}, 1)
    assert session.run.notes == [
        "fabric: the fabric sweep broke: rank 1: signal 9; swept once more"
    ]
    links = chain.read(session.run.folder)
    assert "fabric-2-1" in cut_off(links)
    assert not [x for x in audit(session.run.bare(), session.run.folder, links) if "missing" in x]


class Broken:
    """A bench whose successive launches end with the given causes."""

    def __init__(self, launch: LaunchRecord, *kinds: str) -> None:
        self._launch, self._kinds = launch, list(kinds)
        self.data_seed, self.worlds = 0, SimpleNamespace(queued_s=0.0, tell=lambda how_far: None)
        self.fleets = SimpleNamespace(software=dict, mended=list)

    def launch_together(self, *_: object) -> list[LaunchRecord]:
        kind = self._kinds.pop(0)
        name = f"x-{9 - len(self._kinds)}"
        return [broken(self._launch, kind, name) if kind else replace(self._launch, launch=name)]


@pytest.mark.parametrize("purpose", [Purpose.GATE, Purpose.PILOT, Purpose.REFERENCE])
@pytest.mark.parametrize(
    ("kinds", "purposes"),
    [
        (["signal", ""], ["flaked", "{}"]),
        (["node", ""], ["flaked", "{}"]),
        (["signal", "signal"], ["flaked", "{}"]),
        (["node", "node"], ["flaked", "flaked"]),
        (["exception"], ["{}"]),
    ],
)
def test_a_launch_that_others_depend_on_is_repeated(
    session: Session,
    timed: LaunchRecord,
    monkeypatch: pytest.MonkeyPatch,
    purpose: Purpose,
    kinds: list[str],
    purposes: list[str],
) -> None:
    plan = session.run.plans[0]
    (arm,) = [a for a in plan.arms if a.name == timed.arm]
    order = Order(plan=plan, arm=arm, purpose=purpose, window=plan.window)
    monkeypatch.setattr(session, "bench", Broken(replace(timed, purpose=purpose), *kinds))
    now = moment(session, order, {}, [])
    if kinds == ["node", "node"]:
        with pytest.raises(RetryableError, match="a node was lost again"):
            session.launch([order], now)
    else:
        session.launch([order], now)
    assert [x.purpose for x in session.run.launches] == [w.format(purpose) for w in purposes]
    assert all(x.asked is purpose for x in session.run.launches)


def test_an_interrupt_that_python_drops_ends_the_run_before_its_next_launch(
    session: Session, timed: LaunchRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops exceptions that a signal handler raises within ``__del__``."""

    class Cleared:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    plan = session.run.plans[0]
    (arm,) = [a for a in plan.arms if a.name == timed.arm]
    order = Order(plan=plan, arm=arm, purpose=Purpose.GATE, window=plan.window)
    monkeypatch.setattr(session, "bench", Broken(timed, ""))
    now = moment(session, order, {}, [])
    dropped: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr("sys.unraisablehook", dropped.append)
        Cleared()
    assert dropped
    with pytest.raises(KeyboardInterrupt):
        session.launch([order], now)
    assert not session.run.launches
