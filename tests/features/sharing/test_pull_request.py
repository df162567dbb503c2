"""The cost of a change: how often it is misjudged, and the formats that code hosts read."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import BusyError, LaunchError, OutOfTimeError
from harness.features.sharing import checkouts, comment
from harness.features.sharing.change import CaseChange, judged, measured
from harness.features.sharing.checkouts import Version
from harness.interface.cli.main import main, parsed
from harness.measure.interleaving import FEWEST_BLOCKS, MOST_BLOCKS
from harness.record import Status
from harness.record.store import load

CASE = "ddp/decoder-tiny/weak@2cpu"
BASE = Version(asked="origin/main", commit="0" * 40)
HEAD = Version(asked="HEAD", commit="1" * 40)


def settled(longer: float, apart: float, draw: np.random.Generator) -> CaseChange:
    """Return the final judgement after blocks of two pairs: ``longer`` is head against base,
    ``apart`` base against itself.
    """
    changed: list[float] = []
    again: list[float] = []
    while True:
        changed += list(draw.normal(longer, 0.01, 2))
        again += list(draw.normal(apart, 0.01, 2))
        change = judged(CASE, "", 0.05, changed, again)
        enough = len(changed) >= 2 * FEWEST_BLOCKS and change.status is not Status.INCONCLUSIVE
        if enough or len(changed) >= 2 * MOST_BLOCKS:
            return change


@pytest.mark.parametrize(
    ("costs", "expected"), [(0.0, Status.PASS), (0.03, Status.PASS), (0.08, Status.FAIL)]
)
def test_the_cost_of_a_change_is_judged_correctly(costs: float, expected: Status) -> None:
    draw = np.random.default_rng(3)
    statuses = [settled(-np.log1p(-costs), 0.0, draw).status for _ in range(100)]
    assert statuses.count(expected) >= 95


def test_a_change_at_the_bound_passes_at_most_once_in_twenty() -> None:
    draw = np.random.default_rng(4)
    statuses = [settled(-np.log1p(-0.05), 0.0, draw).status for _ in range(400)]
    assert statuses.count(Status.PASS) <= 20 and statuses.count(Status.FAIL) <= 20


def test_a_version_that_differs_from_itself_is_inconclusive() -> None:
    draw = np.random.default_rng(5)
    for longer in (0.0, 0.2):
        change = settled(longer, 0.03, draw)
        assert change.status is Status.INCONCLUSIVE
        assert "the base version differs from itself: 0.97" in change.why


@pytest.mark.parametrize(("kind", "tries"), [(OutOfTimeError, 1), (BusyError, 3)])
def test_measurements_before_the_end_of_the_time_budget_are_shown(
    kind: type[BusyError], tries: int
) -> None:
    """After two blocks no more can be measured: the result is inconclusive with its figures, not an
    ERROR.

    A busy host may become idle, so three more blocks are tried; an exhausted time budget stops at
    once.
    """

    class Ends:
        blocks = 0

        def beside(self, *_: object) -> list[list[float]]:
            self.blocks += 1
            if self.blocks > 2:
                raise kind("the time budget ended before head was measured beside base")
            return [[1.1, 1.2], [0.01, -0.01]]

    ends = Ends()
    change = measured(ends, CASE, "", 0.05, lambda _: None)  # type: ignore[arg-type]
    assert ends.blocks == 2 + tries
    assert change.status is Status.INCONCLUSIVE and change.num_pairs == 4
    assert change.ratio == pytest.approx(np.exp(-1.15)) and "time budget" in change.why


PASSED = CaseChange(
    case=CASE, file="src/models/net.py", status=Status.PASS, allowed=0.05,
    ratio=1.002, low=0.99, high=1.014, num_pairs=8, again_ratio=0.999, again_low=0.99,
    again_high=1.01, base_step_s=0.02, head_step_s=0.01996,
)  # fmt: skip
FAILED = replace(PASSED, status=Status.FAIL, ratio=0.9, low=0.89, high=0.91)


def test_a_comment_has_a_headline_its_figures_and_the_control() -> None:
    lines = comment.markdown([PASSED, FAILED], (BASE, replace(HEAD, edited=True)), ["2 <b> cores"])
    assert lines[1] == (
        f"### FAIL: {CASE} has 0.900 [0.890, 0.910] of base throughput"
        " (the worst of 2 cases), threshold 0.95"
    )
    text = "\n".join(lines)
    assert "| FAIL | " + CASE in text and "0.999 [0.990, 1.010]" in text
    assert text.count("<details>") == text.count("</details>") == 1
    assert "with uncommitted changes" in text and "2 &lt;b&gt; cores" in text


def test_annotations_are_github_workflow_commands() -> None:
    """Special characters are escaped as https://docs.github.com/actions demands: %, CR and LF, in
    properties also : and ,
    """
    odd = replace(FAILED, file="a,b:c.py", status=Status.ERROR, why="50%\nof it")
    (line,) = comment.annotations([PASSED, odd])
    assert line.startswith("::error file=a%2Cb%3Ac.py,title=scaleproof%3A ERROR::ERROR: ")
    assert line.endswith("50%25%0Aof it") and "\n" not in line
    assert comment.annotations([PASSED]) == []


def test_the_gitlab_report_is_a_list_of_degradations() -> None:
    """The keys and severities are those that https://docs.gitlab.com/ci/testing/code_quality/
    demands.
    """
    (issue,) = json.loads(comment.quality([PASSED, FAILED]))
    assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
    assert issue["location"] == {"path": "src/models/net.py", "lines": {"begin": 1}}
    assert issue["description"] and issue["check_name"] and issue["fingerprint"]
    assert json.loads(comment.quality([PASSED])) == []


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a clone with a branch that changes a package, while main has a newer commit."""
    folder = tmp_path / "project"
    (folder / "src" / "net").mkdir(parents=True)
    git(folder, "init", "-qb", "main")
    (folder / "src/net/__init__.py").write_text("WIDTH = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    git(folder, "checkout", "-qb", "change")
    (folder / "src/net/__init__.py").write_text("WIDTH = 2\n")
    git(folder, "commit", "-qam", "two")
    git(folder, "checkout", "-q", "main")
    git(folder, "commit", "-qm", "others", "--allow-empty")
    git(folder, "checkout", "-q", "change")
    return folder


def width(checkout: checkouts.Checkout) -> str:
    words = [str(checkout.python), "-c", "import net; print(net.WIDTH)"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_each_version_imports_its_files_and_the_clone_is_unchanged(project: Path) -> None:
    (project / "src/net/__init__.py").write_text("WIDTH = 3\n")
    before = git(project, "status", "--short"), git(project, "stash", "list")
    head = checkouts.head_of(project, None)
    base = checkouts.base_of(project, "main", head.commit)
    assert base.commit == git(project, "rev-parse", "main~1"), (
        "commits on main after the branch point must not count"
    )
    assert head.edited
    into = project.parent / "into"
    assert width(checkouts.unpacked(project, base, into)) == "1"
    assert width(checkouts.unpacked(project, checkouts.head_of(project, "change"), into)) == "2"
    (project / "data").mkdir()
    checkout = checkouts.unpacked(project, head, into, data=["data"])
    assert width(checkout) == "3" and (checkout.folder / "data").is_symlink()
    assert before == (git(project, "status", "--short"), git(project, "stash", "list"))


def test_an_install_command_creates_a_separate_environment(project: Path) -> None:
    head = checkouts.head_of(project, None)
    link = f"mkdir -p {{folder}}/bin && ln -s {sys.executable} {{folder}}/bin/python"
    checkout = checkouts.unpacked(project, head, project.parent / "into", install=link)
    assert checkout.python.is_symlink()
    with pytest.raises(LaunchError, match="no compiler"):
        words = "echo no compiler; exit 3"
        checkouts.unpacked(project, head, project.parent / "into", install=words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--base", "main"], "nothing to measure"),
        (["--base", "nowhere", CASE], "--base nowhere: "),
        (["--base", "main", "--head", "nowhere", CASE], "no such commit"),
        (["--base", "main", "--allow", "2", CASE], "is not between 0 and 1"),
    ],
)
def test_an_invalid_comparison_is_reported(
    words: list[str],
    expected: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    assert main(["compare", "pr", *words, "--cpus", "1"]) == 4
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("file", ["github.yml", "gitlab.yml"])
def test_the_example_workflows_use_existing_options(file: str) -> None:
    """The YAML of each workflow is parsed, and its command is parsed by the command line."""
    yaml = pytest.importorskip("yaml")
    text = (Path(__file__).parents[3] / "examples/pull_request" / file).read_text()
    document = yaml.safe_load(text)
    job = document.get("jobs", document)["speed"]
    steps = job.get("script") or [step["run"] for step in job["steps"] if "run" in step]
    (command,) = [line for line in steps if "scaleproof compare pr " in line]
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "main", command))
    asked = parsed(words[1:])
    assert asked.command == "compare pr"
    assert asked.options.base and asked.options.time_budget == "20m"
    assert asked.script == ["train.py"]


@pytest.mark.full
def test_a_change_that_trains_something_else_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The change halves the batch, which is faster; the example itself is measured, without known
    answers.
    """
    script = (Path(__file__).parents[3] / "examples/training/train.py").read_text()
    file = tmp_path / "train.py"
    file.write_text(script)
    git(tmp_path, "init", "-qb", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    file.write_text(script.replace("batch_size=128", "batch_size=64"))
    monkeypatch.chdir(tmp_path)
    assert (
        main(["compare", "pr", "--base", "main", "--cpus", "2", "--json", "--", "train.py"]) == 11
    )
    document = json.loads(capsys.readouterr().out)
    (change,) = document["changes"]
    assert "count: a step has 128 samples, 256 on 2 ranks" in change["why"]
    assert change["ratio"] is None and change["file"] == "train.py"
    blocks = {plan.name for plan in load(Path(document["run"])).plans}
    assert len(blocks) == 1, "no further block may be measured"


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize(("slower", "status"), [(0.0, 0), (0.12, 1)])
def test_a_change_of_a_users_file_is_measured_and_judged(
    slower: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model waits for a fixed time, and the change extends it by the injected slowdown."""
    plant = (Path(__file__).parents[2] / "plants/versioned.py").read_text()
    (tmp_path / "models").mkdir()
    file = tmp_path / "models/timed.py"
    file.write_text(plant)
    git(tmp_path, "init", "-qb", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    file.write_text(plant.replace('"PLANTED_SLOWER", "0"', f'"PLANTED_SLOWER", "{slower}"') + "#\n")
    summary = tmp_path / "summary.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    words = [
        "compare",
        "pr",
        "ddp/timed-small/weak",
        "--path",
        "models",
        "--base",
        "main",
        "--cpus",
        "1",
    ]
    assert main(words) == status
    screen = capsys.readouterr().out
    assert ("::error file=models/timed.py" in screen) == bool(status)
    assert summary.read_text().startswith(comment.MARK)
    (folder,) = (tmp_path / "results/runs").glob("*/*")
    run = load(folder)
    assert {name for name, _ in run.settings.checkouts} == {"base", "head", "again"}
    assert main(["verify", str(folder)]) == 0


def test_a_pull_request_without_a_change_costs_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert main(["compare", "pr", "--base", "HEAD", CASE, "--cpus", "1"]) == 0
    assert "nothing has changed since HEAD" in capsys.readouterr().out
