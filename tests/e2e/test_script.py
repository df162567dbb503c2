"""A user's own training: measured unchanged, and every mistake in it named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.verify import verify
from harness.base.errors import SpecError
from harness.measure import together
from harness.measure.measurer import Measurer, moment
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose, Status, Verdict
from harness.spec import Catalogue, Device, Mode, Protocol, Settings, Site
from harness.spec.script import parse, script_plan

SCRIPTS = Path(__file__).parents[1] / "scripts"
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
FAST = Protocol(steps=8, cut=2, min_blocks=1, max_blocks=1)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    settings = Settings(fabric=False, timeline=False, nodes=(2,))
    made = Session(Catalogue(), settings, tmp_path_factory.mktemp("runs"), (), Progress())
    yield made
    made.close()


@pytest.fixture
def measured(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    monkeypatch.chdir(SCRIPTS)
    yield Measured(session)


class Measured:
    """Measures one script over 1 and 2 ranks."""

    def __init__(self, session: Session) -> None:
        self._measurer, self.session = Measurer(session), session

    def __call__(self, *words: str, mode: Mode = Mode.WEAK, samples: int = 0) -> Verdict:
        plan = script_plan(words, SITE, mode, samples, FAST)
        self._measurer.measure([plan])
        self.plan = plan
        (verdict,) = self._measurer.verdicts(plan)
        return verdict

    def once(self, *words: str) -> LaunchRecord:
        """One launch on 2 ranks."""
        plan = script_plan(words, SITE, protocol=FAST)
        arm = plan.arm("@2")
        self.session.describe([arm.case])
        (order,) = together.orders(self.session, plan, [arm], Purpose.PILOT)
        self.session.run.announce([plan])
        (launch,) = self.session.launch([order], moment(self.session, order, {}, []))
        return launch

    def launches(self, ranks: int, purpose: Purpose = Purpose.TIMED) -> list[LaunchRecord]:
        run = self.session.run.launches
        mine = [x for x in run if x.plan == self.plan.hash and x.purpose is purpose]
        return [x for x in mine if len(x.ranks) == ranks]


def test_a_plain_loop_is_measured_as_it_is(measured: Measured) -> None:
    verdict = measured("loop.py")
    assert verdict.status is Status.RECORDED and verdict.value is not None, verdict.detail
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 64 * two.steps.count
    seen = two.ranks[0].watched
    assert seen is not None and seen.optimizers == ("AdamW",) and seen.backwards == 1
    assert seen.world_size == 2 and seen.backend == "gloo" and seen.way == "forked"
    assert two.ranks[0].ran.module == "DistributedDataParallel(Sequential)"
    assert not (SCRIPTS / "work0").exists()
    record = measured.session.run.record(complete=False)
    assert not verify(record, measured.session.run.folder).differences


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("same data", "is a DistributedSampler missing"),
        ("wrong world", "trains in a group of 1, not 2"),
        ("no all-reduce", "are gradients all-reduced"),
        ("seeds", "start from different parameters"),
        ("idle", "rank 1 got no samples"),
        ("second all-reduce", "is there a second all-reduce"),
        ("no set_epoch", "is sampler.set_epoch"),
        ("cached", "every step trains on the same 32 samples"),
        ("precision", "the forward pass returns bfloat16 here, float32 on one rank"),
        ("resumed", "was one resumed"),
    ],
)
def test_mistakes_are_named(measured: Measured, mistake: str, said: str, tmp_path: Path) -> None:
    verdict = measured("loop.py", "--mistake", mistake, "--kept", str(tmp_path / "kept.pt"))
    assert verdict.status is Status.ERROR and said in verdict.detail, verdict.detail


def test_gradients_exchanged_in_every_pass_are_named(measured: Measured) -> None:
    verdict = measured("loop.py", "--accumulate", "4", "--mistake", "no no_sync")
    assert "is no_sync() missing while gradients accumulate" in verdict.detail
    assert measured("loop.py", "--accumulate", "4").status is Status.RECORDED
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 64 * two.steps.count


def test_a_strong_ladder_compares_gradients(measured: Measured) -> None:
    words = ("loop.py", "--global-batch", "64")
    assert measured(*words, mode=Mode.STRONG).status is Status.RECORDED
    for ranks in (1, 2):
        launch = measured.launches(ranks)[0]
        assert launch.steps is not None and launch.consumed == 64 * launch.steps.count
    wrong = measured(*words, "--mistake", "sum", mode=Mode.STRONG)
    assert "their norm in the first step is 2 times that on one rank" in wrong.detail
    other = measured(*words, mode=Mode.WEAK)
    assert "(--mode strong?)" in other.detail


def test_a_fresh_interpreter_and_a_launcher_see_the_same_training(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, and with the same samples."""
    launcher = ("torchrun", "--nproc-per-node", "{ranks}", "loop.py")
    forked, launched = measured.once("loop.py"), measured.once(*launcher)
    session = measured.session
    monkeypatch.setattr(session, "settings", replace(session.settings, fresh=True))
    fresh = measured.once("loop.py")
    every = (forked, fresh, launched)
    assert not any(x.wrong or x.cause for x in every), [x.wrong or x.cause for x in every]
    seen = [rank.watched for x in every for rank in x.ranks]
    assert [w.way for w in seen if w] == ["forked"] * 2 + ["fresh"] * 2 + ["launcher"] * 2
    assert len({w.start for w in seen if w}) == len({x.losses for x in every}) == 1
    assert len({x.consumed for x in every}) == 1


def test_what_the_script_counts_is_what_is_counted(measured: Measured) -> None:
    measured("loop.py", "--width", "32")
    for ranks in (1, 2):
        launch = measured.launches(ranks)[0]
        folder = measured.session.run.folder / "launches" / launch.launch
        told = re.findall(r"step (\d+) samples (\d+)", (folder / "rank0.log").read_text())
        steps, samples = map(int, told[-1]) if told else (1, 32)
        assert launch.steps is not None
        assert samples / steps == launch.consumed / launch.steps.count / ranks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.py"], "nothing.py: no such file"),
        ([], "no script to run"),
        (["-m"], "-m without a module"),
        (["train.sh"], "is neither a Python file nor a program"),
        (["sh", "loop.py"], "the launcher is not told how many ranks to start"),
    ],
)
def test_commands_that_cannot_run_say_why(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    with pytest.raises(SpecError, match=re.escape(said)):
        script_plan(words, SITE)


def test_commands_are_read_as_a_shell_would() -> None:
    assert parse(["python", "a/train-gpt.py", "--lr", "1"]).name == "train_gpt"
    assert parse(["-m", "pkg.train"]).name == "train" and parse(["-m", "pkg.train"]).module
