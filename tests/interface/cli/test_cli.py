"""The command line: golden screens, JSON, exit status, and errors that end with a command."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.reading import load
from harness.host import admission
from harness.interface.cli.main import commands, main, parsed
from tests.waiting import entered, interruptible, until

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[2] / "golden"


def screen(
    arguments: list[str], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> str:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(arguments) == 0
    return capsys.readouterr().out


BOTH = ("tests/golden/samples/ddp-nano", "tests/golden/samples/ddp-nano-again")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("report", ["report", "tests/golden/samples/ddp-nano"]),
        ("verify", ["verify", "tests/golden/samples/ddp-nano"]),
        ("compare", ["compare", *BOTH, "--every"]),
        ("machines", ["compare", "machines", *BOTH]),
    ],
)
def test_golden_screens(
    name: str, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Set GOLDEN_SCREENS=write to accept new screens after you have read them.

    Wider screens have every word of the narrow one: a key column is never dropped.
    """
    seen = screen(arguments, 80, capsys, monkeypatch)
    path = GOLDEN / f"{name}-80.txt"
    if os.environ.get("GOLDEN_SCREENS") == "write":
        path.write_text(seen)
    assert seen == path.read_text()
    assert max(map(len, seen.splitlines())) <= 80
    assert "\033" not in seen, "a pipe must get no colour codes"
    narrow = {word for word in seen.split() if "…" not in word and len(set(word)) > 1}
    for columns in (100, 140):
        wide = screen(arguments, columns, capsys, monkeypatch)
        assert max(map(len, wide.splitlines())) <= columns
        assert narrow <= set(wide.split()), narrow - set(wide.split())


def test_the_page_needs_no_network(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    screen(["report", "tests/golden/samples/ddp-nano"], 100, capsys, monkeypatch)
    page = (ROOT / "tests/golden/samples/ddp-nano/report.html").read_text()
    assert "http" not in page and "<svg" in page
    assert "ddp/decoder-nano/weak@2cpu" in page and "PASS" in page
    data = re.search(r'<script type="application/json" id="record">(.*?)</script>', page, re.S)
    assert data and len(json.loads(data[1])["verdicts"]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--json"],
        ["run", "list", "--json"],
        ["report", "tests/golden/samples/ddp-nano", "--json"],
        ["verify", "tests/golden/samples/ddp-nano", "--json"],
        [
            "compare",
            "tests/golden/samples/ddp-nano",
            "tests/golden/samples/ddp-nano-again",
            "--json",
        ],
        [
            "compare",
            "machines",
            "tests/golden/samples/ddp-nano",
            "tests/golden/samples/ddp-nano-again",
            "--json",
        ],
    ],
    ids=lambda a: a[0],
)
def test_json_is_one_document(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        admission, "examine", lambda num_gpus=None: ()
    )  # A busy host must not change the exit status of this test.
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["lst"], 4, "did you mean 'run list'"),
        (["report", "nowhere"], 4, "no record.json here"),
        (["run", "ddp/decoder-tny"], 4, "has no size 'tny': did you mean 'tiny'?"),
        (["run", "ddp/decoder-tiny/weka"], 4, "no mode 'weka': did you mean 'weak'?"),
        (["run", "list", "model"], 4, "no kind 'model': did you mean 'models'?"),
        (["network", "--worst-pair"], 4, "no option '--worst-pair'"),
        (["run", "ddp/decoder-tiny/strong", "--cpus", "2"], 4, "needs a global batch"),
        (["run", "ddp/mlp-nano", "--set", "precsion=bf16"], 4, "did you mean 'precision'?"),
        (["run", "ddp/mlp-nano", "--set", "precision=fp4"], 4, "--set precision=fp4"),
        (["run", "ddp/mlp-nano", "--set", "optimizer=lion"], 4, "--set optimizer=lion"),
        (["run", "ddp/mlp-nano", "--set", "colour=red"], 4, "no such field"),
        (["run", "ddp/mlp-nano", "--time-budget", "soon"], 4, "--time-budget soon"),
        (["run", "ddp/mlp-nano", "--gpus", "64"], 4, "usable GPU"),
        (["run"], 4, "nothing to run"),
        (["run", "list", "--path", "nowhere"], 4, "not a folder"),
        (
            ["run", "plan", str(ROOT / "suites/test_ladders.py"), "--cpus", "2"],
            4,
            "-m 'nightly or acc",
        ),
    ],
)
def test_errors_state_the_problem_and_end_with_a_command(
    arguments: list[str],
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    try:
        seen = main(arguments)
    except SystemExit as exit_:
        seen = int(exit_.code or 0)
    error = capsys.readouterr().err
    assert seen == code
    assert says in error and "try " in error and "Traceback" not in error


def test_a_variable_that_nothing_reads_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a misspelt variable would silently select other rules."""
    monkeypatch.setenv("SCALEPROOF_THRESHOLD", "/nowhere.toml")
    assert main(["check", "thresholds"]) == 4
    error = capsys.readouterr().err
    assert (
        "did you mean 'SCALEPROOF_THRESHOLDS'?" in error and "unset SCALEPROOF_THRESHOLD" in error
    )


def test_a_file_without_its_head_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tinynet.py").write_text('"""A model."""\ndef build(size, seed): ...\n')
    assert main(["run", "ddp/tinynet-a", "--cpus", "2", "--path", str(tmp_path)]) == 4
    assert "tinynet.py: a model needs SIZES" in capsys.readouterr().err


def test_the_shell_completes_commands_and_their_options(tmp_path: Path) -> None:
    def completed(line: str) -> list[str]:
        out = tmp_path / "out"
        env = {
            **os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        }  # fmt: skip
        subprocess.run([sys.executable, "-m", "harness"], env=env, check=True)
        return out.read_text().split("\v")

    assert {w.strip() for w in completed("scaleproof comp")} == {"compare"}
    assert {w.strip() for w in completed("scaleproof compare m")} == {"machines"}
    assert [w.strip() for w in completed("scaleproof run --time")] == ["--time-budget"]


def scaleproof(*arguments: str, cwd: Path, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        **kw,
    )


@pytest.mark.full  # The main job covers this, too.
def test_run_measures_judges_and_writes_a_record_that_verifies(tmp_path: Path) -> None:
    done = scaleproof("run", "ddp/mlp-nano/weak", "--cpus", "2", cwd=tmp_path)
    assert done.returncode == 0, "no threshold is configured"
    (folder,) = tmp_path.glob("results/runs/*/*")
    assert f"page    {folder.relative_to(tmp_path)}/report.html" in done.stdout
    assert (folder / "report.html").is_file()
    assert scaleproof("verify", str(folder), cwd=tmp_path).returncode == 0
    assert scaleproof("report", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "report.html").is_file()


def test_plan_prints_the_golden_screen_and_launches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden screen is a plan for eight H100s; profiles and fabric sweeps are included in its
    time.
    """
    target, name = "fsdp/decoder-llama-8b/weak", "plan-llama-8b-8xh100"
    for variable in ("SCALEPROOF_NO_TIMELINE", "SCALEPROOF_NO_FABRIC"):
        monkeypatch.delenv(variable)
    arguments = ["run", "plan", target, "--on", "8xh100", "--cpus", "1"]
    done = scaleproof(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = done.stdout.partition("\n")[2]
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN_SCREENS") == "write":
        golden.write_text(seen)
    assert seen == golden.read_text()
    assert not (tmp_path / "results").exists()


@pytest.mark.full
@pytest.mark.parametrize("purpose", ["gate", "pilot", "timed"])
def test_a_killed_run_keeps_its_launches_and_can_be_resumed(tmp_path: Path, purpose: str) -> None:
    """SIGKILL prevents any further write, so the run consists of the launches recorded before it."""
    command = [sys.executable, "-m", "harness", "run", "ddp/mlp-nano/weak", "--cpus", "2"]

    with subprocess.Popen([*command, "--no-timeline"], cwd=tmp_path) as process:
        folder = until(lambda: entered(tmp_path, purpose))[0].parent
        assert process.poll() is None, "it ended too early to be killed"
        process.kill()
    before = load(folder)
    assert not before.complete and before.launches[-1].purpose == purpose
    assert scaleproof("verify", str(folder), cwd=tmp_path).returncode == 0, (
        "the interrupted run must verify"
    )
    assert scaleproof("report", str(folder), cwd=tmp_path).returncode == 0
    done = scaleproof("run", "--resume", str(folder), cwd=tmp_path)
    after = load(folder)
    assert done.returncode == 0 and after.complete
    assert after.launches[: len(before.launches)] == before.launches
    assert scaleproof("verify", str(folder), cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", "ddp/mlp-nano/weak", "--cpus", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=interruptible
    )
    folder = until(lambda: entered(tmp_path, "timed"))[0].parent
    assert process.poll() is None, "it ended before its first block"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f" next    scaleproof run --resume {folder.relative_to(tmp_path)}" in out
    record = folder / "record.json"
    before = json.loads(record.read_text())
    assert not before["complete"] and before["launches"]
    done = scaleproof("run", "--resume", str(folder), cwd=tmp_path)
    after = json.loads(record.read_text())
    assert done.returncode == 0 and after["complete"]
    kept = {x["launch"] for x in before["launches"]} & {x["launch"] for x in after["launches"]}
    assert kept
    assert scaleproof("verify", str(folder), cwd=tmp_path).returncode == 0
    assert scaleproof("run", "--resume", str(folder), cwd=tmp_path).returncode == 4


@pytest.mark.full
def test_resume_measures_the_remaining_plans(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "from harness import Protocol, ladder\n"
        "TWO = Protocol(steps=6, cut=2, min_blocks=1, max_blocks=1)\n"
        "CASES = ('ddp/mlp-nano', 'fsdp/mlp-nano')\n"
        "def both(site):\n"
        "    return [ladder(site.case(c), (1,), protocol=TWO) for c in CASES]\n"
    )
    words = ["run", "two.py::both", "--cpus", "1", "--worst-pair", "--no-timeline"]
    command = [sys.executable, "-m", "harness", *words]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, preexec_fn=interruptible
    )
    records = until(lambda: list(tmp_path.glob("results/runs/*/*/record.json")))
    assert process.poll() is None, "it ended before its first block"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 2
    done = scaleproof("run", "--resume", str(records[0].parent), "--one-by-one", cwd=tmp_path)
    run = json.loads(records[0].read_text())
    assert run["complete"]
    settings = run["settings"]
    assert settings["strict"] and not settings["timeline"], (
        "resume must keep the settings of the run"
    )
    assert settings["argv"] == ["scaleproof", *words]
    assert shlex.join(words) in " ".join(done.stdout.split())
    assert not settings["packed"]
    assert any("resumed with packed = False, begun with True" in note for note in run["notes"])
    assert {p["name"] for p in run["plans"]} == {"ddp/mlp-nano/weak", "fsdp/mlp-nano/weak"}
    assert {v["status"] for v in run["verdicts"]} <= {"RECORDED", "INCONCLUSIVE"}, (
        "a noisy host makes the verdicts INCONCLUSIVE"
    )
    turns = [x["turn"] for x in run["launches"] if x["purpose"] == "timed" and x["arm"] == "plain"]
    assert sorted(turns) == [0, 0, 1, 1], "each plan has one block, measured once"


@pytest.mark.full  # This takes two minutes; tests/launch/clusters also launches worlds by torchrun.
def test_several_nodes_by_torchrun(tmp_path: Path) -> None:
    """Start two torchrun agents on this machine as two nodes with one rank each."""
    (tmp_path / "two.py").write_text(
        "from harness import Protocol, ladder\n"
        "FAST = Protocol(steps=6, cut=2, min_blocks=1, max_blocks=1)\n"
        "def plain(site):\n"
        "    return [ladder(site.case('ddp/mlp-nano'), (2,), baselines=('plain',), protocol=FAST, shape=site.shape)]\n"
    )
    arguments = ("run", "two.py::plain", "--engine", "torchrun", "--nodes", "2", "--cpus", "2")
    done = scaleproof(*arguments, cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    (path,) = tmp_path.glob("results/runs/*/*/record.json")
    launches = json.loads(path.read_text())["launches"]
    two = [x for x in launches if x["arm"] == "@2"]
    assert all([r["node"] for r in x["ranks"]] == [0, 1] for x in two)
    assert {x["status"] for x in launches} == {"ok"} and not any(x["wrong"] for x in launches)
    assert all(c["ok"] for x in launches for r in x["ranks"] for c in r["checks"])


@pytest.mark.full
def test_every_kind_of_baseline_is_measured(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(
        "from harness import Protocol, ladder, versus\n"
        "FAST = Protocol(steps=6, cut=2, min_blocks=2, max_blocks=2)\n"
        "def all_kinds(site):\n"
        "    kinds = ('plain', 'wrapped', 'smallest_fit', 'sum_of_devices')\n"
        "    return [ladder(site.case('ddp/mlp-nano'), (1, 2), baselines=kinds, protocol=FAST),\n"
        "            versus(site.case('ddp/mlp-nano'), site.case('compressed:topk/mlp-nano'),\n"
        "                   ('wire_ratio', 'memory_saved', 'step_time_ratio'), protocol=FAST)]\n"
    )
    done = scaleproof("run", "kinds.py::all_kinds", "--cpus", "2", "--json", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    verdicts = {
        (v["contrast"], v["case"]): v
        for v in json.loads(done.stdout)["verdicts"]
        if v["status"] == "RECORDED"
    }
    names = {name for name, _ in verdicts}
    assert names == {
        "efficiency@1/plain",
        "efficiency@1/sum_of_devices",
        "efficiency@2/plain",
        "efficiency@2/wrapped",
        "efficiency@2/smallest_fit@1",
        "efficiency@2/sum_of_devices",
        "wire_ratio@b/other",
        "memory_saved@b/other",
        "step_time_ratio@b/other",
    }
    assert all(v["n"] == 4 and v["value"] is not None for v in verdicts.values())
    wire = next(v for (name, _), v in verdicts.items() if name == "wire_ratio@b/other")
    assert wire["value"] < 0.1, "top-k must send a fraction of the dense bytes"


@pytest.mark.parametrize("command", sorted(commands()))
def test_help_ends_with_two_examples_that_parse(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help-all"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    *_, head, first, second = re.sub(r" \\\n +", " ", shown).rstrip().splitlines()
    assert head == "examples:"
    for line in (first, second):
        name, *words = shlex.split(line)
        assert name == "scaleproof"
        assert parsed(words).command == command


def test_only_arguments_that_name_runs_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output keeps its name: otherwise it would be written into the run of that name."""
    monkeypatch.chdir(tmp_path)
    name = "20261130-081600-d2a1"
    folder = Path("results/runs/machine") / name
    folder.mkdir(parents=True)
    assert parsed(["report", name]).options.run == folder
    assert parsed(["compare", name, "--every", name]).options.b == folder
    assert parsed(["run", "--resume", name]).options.resume == str(folder)
    assert parsed(["accept", "unpack", "a.tar.gz", "--to", name]).options.to == Path(name)
    assert parsed(["verify", name, "--nonce", name]).options.nonce == name
