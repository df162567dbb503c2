"""A user's training script is measured unchanged, and every mistake in it is named."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.analysis.rerun_command import command
from harness.analysis.script.counting import by_step
from harness.analysis.verify import verify
from harness.base.errors import Exit, SpecError
from harness.cases import Catalogue, Device, Mode, Settings, Site
from harness.cases.script import accepted, parse, script_plan
from harness.interface.cli.main import main
from harness.interface.report.headline import decide
from harness.interface.report.script import lines as script_table
from harness.launch.engines import emulated
from harness.measure import bench
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Status
from harness.record.store import load_samples
from tests.e2e.scripts import FAST, SCRIPTS, SITE, Measured

TORCHRUN = ("torchrun", "--nproc-per-node", "{ranks}")


def test_a_plain_loop_is_measured_unchanged(measured: Measured) -> None:
    verdict = measured("loop.py")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 64 * two.steps.count
    seen = two.ranks[0].watched
    assert seen is not None and seen.optimizers == ("AdamW",) and seen.backwards == 1
    assert seen.world_size == 2 and seen.backend == "gloo" and seen.way == "forked"
    assert two.ranks[0].ran.module == "DistributedDataParallel(Sequential)"
    assert not (SCRIPTS / "work0").exists()
    record = measured.session.run.record(complete=False)
    assert not verify(record, measured.session.run.folder).differences


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("same data", "is a DistributedSampler missing"),
        ("wrong world", "trains in a group of 1, not 2"),
        ("no all-reduce", "are gradients all-reduced"),
        ("seeds", "start from different parameters"),
        ("idle", "rank 1 got no samples"),
        ("second all-reduce", "is there a second all-reduce"),
        ("no set_epoch", "is sampler.set_epoch"),
        ("cached", "every step trains on the same 32 samples"),
        pytest.param(
            "precision",
            "the forward pass returns bfloat16 here, float32 on one rank",
            marks=pytest.mark.full,
        ),
        ("half", "work: a sample takes 0.5 of the FLOPs that it takes on one rank"),
        pytest.param("frozen", "work: a sample takes 0.", marks=pytest.mark.full),
        ("evaluates", "work: a rank computes up to 0 FLOP outside its training in a step"),
        ("repeated", "samples: 50% of the rows of a step are distinct here"),
        ("broadcast", "gradients: a step only broadcasts"),
        (
            "sampler seeds",
            "DistributedSamplers of ranks differ (rank 0: 2 replicas, seed 0; rank 1: 2 replicas,",
        ),
        ("outside", "ended with different parameters in 1 (the other module is equal)"),
        ("schedule", "learning rates differ, 0.001 on rank 0 and"),
        ("alone", "ended with different values of a trained parameter that no called module has"),
        (
            "shared out twice",
            "samples: 16 of the 32 samples that a DistributedSampler gives rank 0",
        ),
    ],
)
def test_mistakes_are_named(measured: Measured, mistake: str, message: str) -> None:
    verdict = measured("loop.py", "--mistake", mistake)
    assert verdict.status is Status.ERROR and message in verdict.detail, verdict.detail


@pytest.mark.full
def test_a_script_that_resumes_from_the_last_launch_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    settings = Settings(fabric=False, timeline=False, nodes=(2,), writes=(str(tmp_path),))
    session = Session(Catalogue(), settings, tmp_path / "runs", (), Progress())
    with contextlib.closing(session):
        words = "loop.py", "--mistake", "resumed", "--kept", str(tmp_path / "kept.pt")
        verdict = Measured(session)(*words)
    assert verdict.status is Status.ERROR, verdict.detail
    assert "begin with different parameters" in verdict.detail, verdict.detail


def test_an_unknown_check_cannot_be_accepted() -> None:
    assert accepted(" work,idle,work ") == "idle,work"
    for unknown in ("replica", "replicas,steps"):
        with pytest.raises(SpecError, match="there is no such check"):
            accepted(unknown)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mistake", "check", "message"),
    [
        ("no all-reduce", "replicas", "ended with different parameters"),
        ("half", "work", "a sample takes 0.5"),
        ("cached", "samples", "every step trains on the same"),
        ("outside", "replicas", "ended with different parameters in 1"),
    ],
)
def test_accepted_checks_are_no_errors_but_are_reported(
    measured: Measured, mistake: str, check: str, message: str
) -> None:
    verdict = measured("loop.py", "--mistake", mistake, accept=check)
    assert verdict.value is not None and f"+accepted={check}" in verdict.case, verdict.detail
    assert re.search(f"accepted 2cpu: .*{message}", measured.table()), measured.table()
    record = measured.session.run.record(complete=False)
    assert f"--accept {check}" in command(measured.plan.arms[0].case, record.settings)
    assert not verify(record, measured.session.run.folder).differences


@pytest.mark.full
def test_a_rank_that_skips_steps_is_found_by_its_count(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "SCRIPTS", replace(bench.SCRIPTS, meet_s=6.0))
    launch = measured.once("loop.py", "--mistake", "skips")
    assert launch.cause is not None and launch.cause.sure
    assert (launch.cause.rank, launch.cause.kind) == (1, "collective"), launch.cause
    assert "it skips optimizer steps that the other ranks take" in launch.cause.message


def test_a_script_without_a_seed_is_compared_by_its_speed(measured: Measured) -> None:
    """Most tutorials set no seed, so launches start from different parameters without a mistake."""
    verdict = measured("loop.py", "--unseeded")
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    starts = {x.ranks[0].watched.start for x in measured.launches(2) if x.ranks[0].watched}
    assert len(starts) == len(measured.launches(2)), "another one in each launch"
    text = " ".join(script_table(measured.session.run.record(complete=False), 80))
    assert "one start (no seed was seen" in " ".join(text.split())
    assert "gradient of 2cpu equal" not in text


@pytest.mark.full
def test_gradients_exchanged_in_every_pass_are_named(measured: Measured) -> None:
    verdict = measured("loop.py", "--accumulate", "4", "--mistake", "no no_sync")
    assert verdict.value is not None and measured.wrong() == [], "slow, and right"
    assert "is no_sync() missing while gradients accumulate" in measured.table()
    assert "gradients exchanged once" not in measured.table()
    assert measured("loop.py", "--accumulate", "4").value and measured.wrong() == []
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 64 * two.steps.count


def test_a_strong_ladder_compares_gradients(measured: Measured) -> None:
    words = ("loop.py", "--global-batch", "64")
    assert measured(*words, mode=Mode.STRONG).value and measured.wrong() == []
    for ranks in (1, 2):
        launch = measured.launches(ranks)[0]
        assert launch.steps is not None and launch.consumed == 64 * launch.steps.count
    wrong = measured(*words, "--mistake", "sum", mode=Mode.STRONG)
    assert "their norm in the first step is 2 times that on one rank" in wrong.detail
    other = measured(*words, mode=Mode.WEAK)
    assert "(--mode strong?)" in other.detail


@pytest.mark.full
def test_a_launcher_that_starts_nothing_is_quoted(measured: Measured) -> None:
    launch = measured.once("sh", "launch.sh", "{ranks}")
    assert launch.cause is not None
    assert "with status 3" in launch.cause.message
    assert "(it said: port 29400 is taken)" in launch.cause.message


@pytest.mark.full
def test_a_process_without_a_rank_variable_is_ended(measured: Measured) -> None:
    launch = measured.once("bash", "untold.sh", "{ranks}")
    assert launch.cause is not None and "CalledProcess" not in launch.cause.message
    assert "its launcher has not set RANK" in launch.cause.message


@pytest.mark.full
def test_a_launcher_that_starts_one_rank_of_two_is_an_error_at_once(measured: Measured) -> None:
    """accelerate's launcher does this without a GPU. The launch must end instead of waiting."""
    launch = measured.once("bash", "one.sh", "{ranks}")
    assert launch.cause is not None
    assert "the launcher has started 1 of 2 ranks" in launch.cause.message


@pytest.mark.full
def test_a_sitecustomize_that_imports_torch_hides_nothing(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user's sitecustomize runs, and hooks are installed although torch is imported already."""
    (tmp_path / "sitecustomize.py").write_text("import torch\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launch = measured.once("torchrun", "--nproc_per_node={ranks}", "loop.py")
    assert not launch.wrong and launch.cause is None, launch.cause
    assert [rank.watched.way for rank in launch.ranks if rank.watched] == ["launcher"] * 2


@pytest.mark.full
def test_a_fresh_interpreter_and_a_launcher_see_the_same_training(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them give identical bits and samples."""
    launcher = ("torchrun", "--master_port=29500", "--nproc_per_node=4", "loop.py")  # as typed
    forked, launched = measured.once("loop.py"), measured.once(*launcher)
    session = measured.session
    monkeypatch.setattr(session, "settings", replace(session.settings, fresh=True))
    fresh = measured.once("asking.py")  # its libraries search for torch before importing it
    every = (forked, fresh, launched)
    assert not any(x.wrong or x.cause for x in every), [x.wrong or x.cause for x in every]
    seen = [rank.watched for x in every for rank in x.ranks]
    assert [w.way for w in seen if w] == ["forked"] * 2 + ["fresh"] * 2 + ["launcher"] * 2
    assert len({w.start for w in seen if w}) == len({x.losses for x in every}) == 1
    assert len({x.consumed for x in every}) == 1


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.full)])
def test_ranks_meet_although_the_script_names_another_rendezvous(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """The script names an impossible file or another machine's address for the rendezvous.

    Its eleven gradients, reduced in one collective of 44 bytes, must not count as a logged value.
    """
    session = measured.session
    monkeypatch.setattr(session, "settings", replace(session.settings, fresh=fresh))
    for place in ("file:///proc/none", "env://", "tcp://10.57.23.164:8888"):
        launch = measured.once("tutorial.py", place)
        assert launch.usable, launch.wrong or launch.cause
        assert [r.watched.small for r in launch.ranks if r.watched] == [0, 0]


@pytest.mark.full
def test_a_launcher_that_writes_its_script_for_each_world_is_measured(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that a launch writes into its copy are no edits; changes between launches are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text((SCRIPTS / "spawns.py").read_text())
    launcher = tmp_path / "launch.sh"
    launcher.write_text('sed "s/RANKS/$1/" train.py > sized.py; python sized.py $1\n')
    for name in ("train.py", "launch.sh"):
        os.utime(tmp_path / name, (1e9, 1e9))
    words = ("bash", "launch.sh", "{ranks}")
    launches = [measured.once(*words, ranks=ranks) for ranks in (1, 2)]
    assert all(launch.usable for launch in launches), [x.wrong or x.cause for x in launches]
    (first, second) = [launch.ranks[0].sources or {} for launch in launches]
    assert first == second and "train.py" in first and "sized.py" not in first
    with (tmp_path / "train.py").open("a") as file:
        file.write("# edited\n")
    edited = measured.once(*words, ranks=1).ranks[0].sources or {}
    assert edited["train.py"] != first["train.py"]


@pytest.mark.full
def test_a_script_that_spawns_in_another_file_and_makes_no_group_of_one(
    measured: Measured,
) -> None:
    """A script without a process group on one rank is measured, with its seed and its loader."""
    starts = set[str]()
    for ranks in (1, 2):
        launch = measured.once("several.py", "{ranks}", ranks=ranks)
        assert launch.usable and launch.steps is not None, launch.wrong or launch.cause
        (watched, *_) = [r.watched for r in launch.ranks]
        assert watched is not None
        assert (watched.way, watched.world_size) == ("launcher", ranks)
        assert watched.seeded and watched.workers == 1 and watched.drawn == 8
        starts.add(watched.start)
    assert len(starts) == 1 and "" not in starts


@pytest.mark.full
def test_a_script_that_spawns_its_ranks_is_measured(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of ranks comes from an argument or a file; a fixed port causes no conflict."""
    (tmp_path / "spawns.py").write_text((SCRIPTS / "spawns.py").read_text())
    (tmp_path / "world.json").write_text('{"world": {world}}')
    monkeypatch.chdir(tmp_path)
    processes = (("spawns.py", "processes", "{ranks}"), ("env", "python", "spawns.py", "{ranks}"))
    for words in (("spawns.py", "{ranks}"), ("python", "spawns.py", "world.json"), *processes):
        launch = measured.once(*words)
        assert launch.usable and launch.steps is not None, launch.wrong or launch.cause
        assert launch.consumed == 2 * 8 * launch.steps.count
        assert [r.watched.way for r in launch.ranks if r.watched] == ["launcher"] * 2
    assert measured.once("spawns.py", "alone").usable
    assert measured.once("env", "python", "spawns.py", "{ranks}", ranks=1).usable
    for word in ("spawn", "processes"):
        cause = measured.once("spawns.py", word).cause
        assert cause is not None and "no word of its command is {ranks}" in cause.message
    assert (tmp_path / "world.json").read_text() == '{"world": {world}}'


def test_counts_agree_with_those_of_the_script(measured: Measured) -> None:
    measured("loop.py", "--width", "32")
    for ranks in (1, 2):
        launch = measured.launches(ranks)[0]
        folder = measured.session.run.folder / "launches" / launch.launch
        matches = re.findall(r"step (\d+) samples (\d+)", (folder / "rank0.log").read_text())
        steps, samples = map(int, matches[-1]) if matches else (1, 32)
        assert launch.steps is not None
        assert samples / steps == launch.consumed / launch.steps.count / ranks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "nothing.py: no such file"),
        ([], "no script to run"),
        (["-m"], "-m without a module"),
        (["train.sh"], "is neither a Python file nor a program"),
        (["sh", "loop.py"], "the command does not state how many ranks the launcher starts"),
    ],
)
def test_commands_that_cannot_run_are_refused_with_a_reason(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    with pytest.raises(SpecError, match=re.escape(message)):
        script_plan(words, SITE)


def test_commands_are_read_as_a_shell_would() -> None:
    assert parse(["python", "a/train-gpt.py", "--lr", "1"]).name == "train_gpt"
    assert parse(["-m", "pkg.train"]).name == "train" and parse(["-m", "pkg.train"]).module


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["forks", "floods", "catches SIGTERM", "leaks", "writes"])
def test_scripts_with_unusual_processes_are_measured(measured: Measured, how: str) -> None:
    before = sorted(p.name for p in SCRIPTS.iterdir())
    measured("odd.py", how)
    assert measured.launches(2) and measured.wrong() == []
    assert sorted(p.name for p in SCRIPTS.iterdir()) == before
    sleeping = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _says(p, b"7654")]
    assert not sleeping


@pytest.mark.full
def test_a_script_runs_in_its_folder_with_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --clean the script finds neighbouring files, and only its own output is removed."""
    (tmp_path / "data.txt").write_text("0.1")
    inside = tmp_path / "code"
    inside.mkdir()
    (inside / "train.py").write_text(
        "from pathlib import Path\n"
        "assert not Path('out').exists() or Path('out/mine').exists()\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 0:\n"
        "    Path('out').mkdir()\n"
        "    Path('out/mine').touch()\n"
        "from torch import Generator, manual_seed, nn, optim, randn\n"
        "manual_seed(0)\n"
        "mine = Generator().manual_seed(dist.get_rank())\n"
        "model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))\n"
        "optimizer = optim.SGD(model.parameters(), lr=float(Path('../data.txt').read_text()))\n"
        "for _ in range(10**6):\n"
        "    model(randn(4, 8, generator=mine)).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.chdir(inside)
    words = [
        "run",
        "--script",
        "--cpus",
        "2",
        "--no-fabric",
        "--no-timeline",
        "--time-budget",
        "20",
    ]
    end = ["--results", str(tmp_path / "results"), "--", "train.py"]
    assert main([*words, "--clean", "out", *end]) == Exit.PASSED
    screen = capsys.readouterr().out
    assert "2cpu" in screen and "Error" not in screen, screen
    assert sorted(p.name for p in inside.iterdir()) == ["train.py"]
    for path, message in (("train.py", "would be removed"), ("../data.txt", "is not below")):
        assert main([*words, "--clean", path, *end]) == Exit.USAGE
        assert message in capsys.readouterr().err


def test_checkpoints_of_the_user_are_not_changed(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script resumes from, and saves to, a large file and a linked folder."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.mkdir()
    (home / "checkpoints").symlink_to(elsewhere)
    (home / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from pathlib import Path\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(600, 600))\n"
        "model.load_state_dict(torch.load('last.pt'))\n"
        "mine = torch.Generator().manual_seed(dist.get_rank())\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(10**6):\n"
        "    model(torch.randn(4, 600, generator=mine)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    if dist.get_rank() == 0:\n"
        "        torch.save(model.state_dict(), 'last.pt')\n"
        "        torch.save(model.state_dict(), 'checkpoints/last.pt')\n"
        "        Path('latest.txt').write_text('changed')\n"
    )
    state = {f"module.{k}": v for k, v in torch.nn.Linear(600, 600).state_dict().items()}
    torch.save(state, home / "last.pt")
    torch.save(state, elsewhere / "last.pt")
    (home / "latest.txt").write_text("mine")
    files = [*home.glob("*.*"), elsewhere / "last.pt"]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    assert max(len(content) for content, _ in before.values()) > 1 << 20
    monkeypatch.chdir(home)
    verdict = Measured(session)("train.py")
    assert verdict.status is not Status.ERROR, verdict.detail
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files} == before
    assert {p.name for p in home.iterdir()} == {"train.py", "last.pt", "latest.txt", "checkpoints"}


def _says(path: Path, word: bytes) -> bool:
    try:
        return word in path.read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("ends early", "the script ended after 5 of the"),
        ("ends unlike", "'ends unlike': the script ended after 5 of the"),
        ("never steps", "the script ended before an optimizer had stepped twice"),
        ("reads stdin", "odd.py:26"),
        ("raises", "no such dataset (odd.py:"),
        ("exits", "left with status 2: train.py: error: no such option"),
    ],
)
def test_scripts_that_cannot_be_measured_are_errors_with_a_reason(
    measured: Measured, how: str, message: str
) -> None:
    verdict = measured("odd.py", how)
    assert verdict.status is Status.ERROR and message in verdict.detail, verdict.detail


@pytest.mark.parametrize(
    "launcher", [(), pytest.param(TORCHRUN, marks=pytest.mark.full)], ids=["forked", "torchrun"]
)
def test_no_file_of_a_launch_contains_what_a_script_should_not_have_told(
    measured: Measured, launcher: tuple[str, ...]
) -> None:
    """One secret has no form of its own, but it is the value of a variable of a forked rank."""
    launch = measured.once(*launcher, "odd.py", "tells secrets", "horse ", "hunter22x")
    assert launch.cause is not None and "postgres://me:***@host/db" in launch.cause.message
    measured.session.run.save(complete=False)
    folder = measured.session.run.folder
    files = [path for path in folder.rglob("*") if path.is_file() and launch.launch in str(path)]
    written = [path.read_bytes() for path in (*files, folder / "record.json")]
    assert any(b"connected with" in content for content in written)
    assert not any(b":hunter22x" in content for content in written)
    assert launcher or not any(b"horse horse" in content for content in written)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "launcher", [(), pytest.param(TORCHRUN, marks=pytest.mark.full)], ids=["forked", "torchrun"]
)
def test_the_value_of_a_variable_reaches_the_script_and_not_the_process_table(
    measured: Measured, launcher: tuple[str, ...]
) -> None:
    launch = measured.once(*launcher, "odd.py", "reads a variable", "{env:HOME}")
    assert launch.cause is None and launch.usable, launch.cause or launch.wrong


def test_the_fix_for_a_script_that_refuses_one_rank_is_first_rung(measured: Measured) -> None:
    verdict = measured("odd.py", "is parallel")
    assert "left with status 1: tensor parallelism needs two ranks" in verdict.detail
    assert (
        "if it needs several ranks:"
        " scaleproof run --script --cpus 4 --first-rung 2 -- odd.py 'is parallel'"
    ) in decide(measured.session.run.record(complete=False))


@pytest.mark.few(1)
@pytest.mark.parametrize(("how", "even"), [("logs seldom", True), ("broadcasts seldom", False)])
def test_uneven_exchanges_of_steps_are_reported(measured: Measured, how: str, even: bool) -> None:
    """Seldom gathered losses do not matter, but seldom exchanged parameters do."""
    measured("odd.py", how)
    assert {r.watched.even for r in measured.launches(2)[0].ranks if r.watched} == {even}
    text = " ".join(" ".join(script_table(measured.session.run.record(complete=False))).split())
    assert ("steps do not exchange equally many bytes" in text) is not even


@pytest.mark.full
def test_a_script_that_hangs_within_its_window_is_ended(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the line of the hang. After the window, the script is not waited for."""
    monkeypatch.setattr(bench, "SCRIPTS", replace(bench.SCRIPTS, step_s=3.0))
    launch = measured.once("odd.py", "hangs at its end")
    assert launch.cause is not None and launch.cause.kind == "hang", launch.cause
    line = (SCRIPTS / "odd.py").read_text().splitlines().index("    threading.Event().wait()") + 1
    assert f"odd.py, line {line}" in launch.cause.message, launch.cause.message


SEVERAL = (
    ("loop.py",),
    ("torchrun", "--nnodes", "{nodes}", "--node-rank", "{node}", "--nproc-per-node", "{ranks}",
     "--master-addr", "{host}", "--master-port", "{port}", "loop.py"),
)  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.full) for words in SEVERAL],
    ids=["forked", "torchrun"],
)
def test_a_script_runs_on_several_nodes(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (here := emulated.build().probe()).available:
        pytest.skip(here.reason)
    monkeypatch.chdir(SCRIPTS)
    site = Site(device=Device.CPU, backend="gloo", nodes=(1, 1), engine="emulated", emulated=True)
    settings = Settings(fabric=False, timeline=False, nodes=(1, 1), engine="emulated")
    session = Session(Catalogue(), settings, tmp_path, (), Progress())
    try:
        launch = Measured(session).once(*words, site=site)
    finally:
        session.close()
    assert not launch.wrong and launch.cause is None, launch.wrong or launch.cause
    assert {r.node for r in launch.ranks} == {0, 1}
    assert launch.steps is not None and launch.consumed == 64 * launch.steps.count


def test_slow_but_correct_code_is_noticed(measured: Measured) -> None:
    """The script sums the loss over all ranks and reads it in every step."""
    measured("odd.py", "logs")
    seen = measured.launches(2)[0].ranks[0].watched
    assert seen is not None and seen.small == 1 and seen.reads == 1
    text = "\n".join(script_table(measured.session.run.record(complete=False), 80))
    assert "2cpu: 1 collective of a few values in the last step" in " ".join(text.split())


STYLES = [
    "plain", "ragged", "compiled", "fsdp", "region", "named", "two optimizers", "in backward",
    "estimates", "awkward", "searched", "met late",
]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("style", STYLES)
def test_steps_and_samples_are_exact_in_every_style(measured: Measured, style: str) -> None:
    """They agree with the script's count, step by step."""
    launch = measured.once("styles.py", style)
    assert not launch.wrong and launch.cause is None, launch.wrong or launch.cause
    folder = measured.session.run.folder
    steps_told = [_told(folder, launch.launch, rank) for rank in (0, 1)]
    if style == "region":
        steps_told = [o[20:] for o in steps_told]
    samples = [load_samples(folder, launch.launch, r) for r in launch.ranks]
    counted = by_step(samples)[FAST.cut :]
    both = [sum(pair) for pair in zip(*steps_told, strict=False)]
    places = range(len(both) - len(counted) + 1)
    assert any(both[i : i + len(counted)] == counted for i in places), (both, counted)
    assert sum(counted) == launch.consumed
    watched = launch.ranks[0].watched
    assert watched is not None and watched.regular and len(watched.roots) == 1


@pytest.mark.full
def test_an_unreadable_batch_needs_a_declared_number_of_samples(measured: Measured) -> None:
    (why,) = measured.once("styles.py", "unread").wrong
    assert "cannot be read (NotImplementedError: decode it first" in why
    assert "--samples-per-step" in why


def _told(folder: Path, launch: str, rank: int) -> list[int]:
    log = (folder / "launches" / launch / f"rank{rank}.log").read_text()
    return [int(n) for n in re.findall(r"step \d+ samples (\d+)", log)]


@pytest.mark.full
def test_a_gan_needs_a_declared_number_of_samples(measured: Measured) -> None:
    launch = measured.once("styles.py", "gan")
    (why,) = launch.wrong
    assert "several modules are called with different rows" in why
    assert "--samples-per-step" in why
    watched = launch.ranks[0].watched
    assert watched is not None and len(watched.optimizers) == 2 and watched.backwards == 2
    verdict = measured("styles.py", "gan", samples=8)
    assert verdict.value is not None and measured.wrong() == [], verdict.detail
    (two, *_) = measured.launches(2)
    assert two.steps is not None and two.consumed == 16 * two.steps.count


@pytest.mark.full
def test_a_suite_measures_a_script_in_one_line(measured: Measured, tmp_path: Path) -> None:
    """``pytest test_mine.py --cpus 2`` judges a script by a local threshold."""
    (tmp_path / "test_mine.py").write_text((SCRIPTS / "suite.py").read_text())
    (tmp_path / "loop.py").write_text((SCRIPTS / "loop.py").read_text())
    (tmp_path / "thresholds.toml").write_text(
        '[[rule]]\nname = "mine"\ncase = "script/loop-own/weak*"\ndevice = "cpu"\nmode = "weak"\n'
        'baseline = "wrapped"\nworld = 2\nmetric = "efficiency"\nat_least = 0.01\nunit = "1"\n'
        'source = "requirement"\n'
    )
    command = [sys.executable, "-m", "pytest", "-q", "test_mine.py", "--cpus", "2", "--no-fabric"]
    done = subprocess.run(
        [*command, "--no-timeline", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "script/loop-own/weak@2cpu" in done.stdout, done.stdout + done.stderr
    assert done.returncode in (0, 10), done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    "where", [pytest.param("data/cache.txt", marks=pytest.mark.full), "behind.txt"]
)
def test_shared_data_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """The guard stops Python's write and names the path. The kernel stops a shell's through a link,
    or its change is detected after the launch.
    """
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cache.txt").write_text("mine")
    (tmp_path / "behind.txt").hardlink_to(tmp_path / "data/cache.txt")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "data").symlink_to(tmp_path / "data")
    (folder / "train.py").write_text(
        "import os, sys\n"
        f"where = {str(tmp_path / where)!r}\n"
        "if where.endswith('behind.txt'):\n"
        "    os.system(f'echo theirs >> {where}')  # which no hook of Python's sees\n"
        "else:\n"
        "    open(where, 'a').write('theirs')\n"
        "import torch.distributed as dist\n"
        "from torch import manual_seed, nn, optim, randn\n"
        "dist.init_process_group('gloo')\n"
        "manual_seed(dist.get_rank())\n"
        "model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))\n"
        "optimizer = optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(10**6):\n"
        "    model(randn(4, 8)).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.chdir(folder)
    words = ["run", "--script", "--check-only", "--cpus", "2", "--data", "data"]
    status = main([*words, "--", "train.py"])
    text = " ".join(capsys.readouterr().out.split())
    kept = (tmp_path / "data/cache.txt").read_text() == "mine"
    assert kept or "omit that --data option, and every launch gets a private copy" in text
    if where == "data/cache.txt":
        assert status == Exit.ERROR, text
        assert "cache.txt" in text and "allow it by --writes" in text


@pytest.mark.parametrize(
    "way", ["forked", "fresh", pytest.param("torchrun", marks=pytest.mark.full)]
)
def test_a_file_outside_of_the_folder_is_not_overwritten(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    kept = tmp_path / "best.pt"
    kept.write_text("three weeks of training")
    session = measured.session
    monkeypatch.setattr(session, "settings", replace(session.settings, fresh=way == "fresh"))
    launcher = ("torchrun", "--nproc_per_node={ranks}") if way == "torchrun" else ()
    launch = measured.once(*launcher, "shared_mistakes.py", "saves outside", str(kept))
    assert launch.cause is not None and f"would write to {kept}" in launch.cause.message
    assert kept.read_text() == "three weeks of training"


@pytest.mark.parametrize("how", ["exports outside", "child outside"])
def test_other_ways_to_write_outside_are_stopped(
    measured: Measured, tmp_path: Path, how: str
) -> None:
    kept = tmp_path / "best.pt"
    kept.write_text("three weeks of training")
    launch = measured.once("shared_mistakes.py", how, str(kept))
    assert launch.cause is not None
    assert kept.read_text() == "three weeks of training"


@pytest.mark.parametrize(
    "stale",
    ["ddp", "fsdp1", pytest.param("fsdp2", marks=pytest.mark.full), "ddp right", "fsdp1 right"],
)
def test_training_that_changes_no_weight_is_an_error(measured: Measured, stale: str) -> None:
    """All ranks and world sizes agree, so only a check of each single rank reveals it."""
    for ranks in (1, 2):
        launch = measured.once("shared_mistakes.py", *stale.split(), ranks=ranks)
        wrong = any("change no weight on any rank" in reason for reason in launch.wrong)
        assert wrong is not stale.endswith("right"), (launch.wrong, launch.cause)
