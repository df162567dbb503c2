"""A user's training script is interrupted and resumed: what it lost, and whether it continues
identically.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.errors import Exit, LaunchError
from harness.cases import Catalogue, Device, Fault, FaultScenario, Settings, Site
from harness.cases.script import script_plan
from harness.features.recovery.recoverer import ScriptRecoverer, continued, went_on_at
from harness.features.recovery.report import trials
from harness.interface.cli.main import main
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Continued, Trial, Update
from harness.record.store import load

SCRIPTS = Path(__file__).parents[2] / "scripts"
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
#: The update after which the training is interrupted; ``resumes.py`` saves every 4 updates.
AFTER = 6


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    settings = Settings(fabric=False, timeline=False, nodes=(2,), folder=str(SCRIPTS))
    made = Session(Catalogue(), settings, tmp_path_factory.mktemp("runs"), (), Progress())
    yield made
    made.close()


def broken(session: Session, monkeypatch: pytest.MonkeyPatch, how: str, fault: Fault) -> Trial:
    """Return one trial; a hang affects the second rank."""
    monkeypatch.chdir(SCRIPTS)
    case = script_plan(["resumes.py", how], SITE).arm("@2").case
    recoverer = ScriptRecoverer(session, shlex.join(["resumes.py", how]), AFTER)
    recoverer.measure(FaultScenario(case=case, fault=fault), 1)
    return session.run.recoveries[-1]


@pytest.mark.parametrize(
    ("how", "goes_on", "lost"),
    [
        ("well", Continued.EXACTLY, 2),
        ("reshuffles", Continued.OTHER_SAMPLES, 2),
        ("weights only", Continued.OTHER_LOSSES, 2),
        ("forgets", Continued.BEGINNING, 6),
        ("rounds", Continued.OTHER_WEIGHTS, None),
    ],
)
def test_the_way_in_which_a_training_continues_is_reported(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    goes_on: Continued,
    lost: int | None,
) -> None:
    trial = broken(session, monkeypatch, how, Fault.KILL)
    assert (trial.continued, trial.lost) == (goes_on, lost)
    assert trial.blamed == trial.rank == 0
    parts = (trial.detect_s, trial.stop_s, trial.start_s, trial.group_s, trial.step_s)
    assert min(parts) >= 0 and trial.group_s > 0 and trial.step_s > 0
    assert (trial.load_s > 0) == (how != "forgets") and trial.stall_s > 0


@pytest.mark.full
def test_a_training_that_hangs_is_ended_and_resumed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = broken(session, monkeypatch, "well", Fault.HANG)
    assert trial.continued is Continued.EXACTLY and trial.blamed == trial.rank
    assert trial.detect_s > 5


def test_a_training_that_is_too_short_to_interrupt_is_reported(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    case = script_plan(["resumes.py", "well", "--short"], SITE).arm("@2").case
    recoverer = ScriptRecoverer(session, case.script, 20)
    with pytest.raises(LaunchError, match="the training ends after 12 updates"):
        recoverer.measure(FaultScenario(case=case, fault=Fault.KILL), 1)


@pytest.mark.full
def test_recover_prints_how_the_script_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(SCRIPTS)
    words = [
        "--trials",
        "1",
        "--break-after",
        str(AFTER),
        "--cpus",
        "2",
        "--results",
        str(tmp_path),
    ]
    before = sorted(SCRIPTS.iterdir())
    assert (
        main(["faults", "recover", "--script", *words, "--", "resumes.py", "well"]) == Exit.PASSED
    )
    screen = " ".join(capsys.readouterr().out.split())
    assert "after kill: the training continues exactly; at most 2 updates" in screen
    assert sorted(SCRIPTS.iterdir()) == before
    (folder,) = {p.parent for p in tmp_path.rglob("record.json")}
    assert trials.lines(load(folder))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["ddp/decoder-nano", "--script", "--cpus", "2", "--", "resumes.py"],
            "cannot be used with",
        ),
        (["--cpus", "2"], "no case or script was given"),
        (["--script", "--cpus", "2", "--resume-with", "no", "--", "resumes.py"], "'no' is neither"),
    ],
)
def test_invalid_options_of_recover_are_reported(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(SCRIPTS)
    assert main(["faults", "recover", *words]) == Exit.USAGE
    assert message in capsys.readouterr().err


def journal(*states: str, loss: float = 1.0, samples: str = "a") -> list[Update]:
    return [
        Update(at=float(i), began_at=0.0, state=s, samples=samples, loss=loss, spent_s={})
        for i, s in enumerate(states)
    ]


def test_every_rank_must_continue_from_the_same_update() -> None:
    both = [journal("0", "1", "2"), journal("0", "x", "y")]
    assert went_on_at(both, [journal("2", "3"), journal("y", "z")]) == 2
    assert went_on_at(both, [journal("2", "3"), journal("x", "z")]) is None
    assert went_on_at(both, [journal("0", "1"), journal("0", "x")]) == 0


@pytest.mark.parametrize(("loss", "how"), [(1.0, "exactly"), (1.01, "other losses")])
def test_a_rank_whose_losses_differ_is_found(loss: float, how: str) -> None:
    whole = [journal("0", "1", "2", "3"), journal("0", "1", "2", "3")]
    resumed = [journal("1", "2", "3"), journal("1", "2", "3", loss=loss)]
    assert str(continued(1, whole, resumed)).endswith(how)
