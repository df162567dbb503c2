"""Several environments in the same blocks: a pinned control, and bisection between versions."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.features.history.bisection import between
from harness.features.history.night import night_of
from harness.interface.cli.main import main
from harness.record.store import load

ROOT = Path(__file__).parents[2]
CASE = ["ddp/versioned-small/weak", "--path", str(ROOT / "tests/plants"), "--cpus", "1"]


def python(path: Path, slower: float) -> Path:
    """Write an interpreter whose environment makes steps slower, and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec env PLANTED_SLOWER={slower} {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.full
def test_a_control_runs_in_a_separate_environment_and_gives_a_ratio(tmp_path: Path) -> None:
    pinned = python(tmp_path / "pinned/python", 0.25)
    words = [*CASE, "--results", str(tmp_path), "--no-timeline", "--no-fabric"]
    assert main(["run", *words, "--control", str(pinned)]) in (0, 5)
    (path,) = (tmp_path / "runs").glob("*/*/record.json")
    run = load(path.parent)
    assert {*run.setups} == {"control"} and run.setups["control"]["torch"]
    assert main(["verify", str(path.parent)]) == 0
    software = {k: v for k, v in run.software.items() if k != "suite"}
    night = night_of(dataclasses.replace(run, software=software), path.parent)
    kept = night.cases["ddp/versioned-small/weak@1cpu"].values
    assert kept["step_time_to_control"].value == pytest.approx(1 / 1.25, rel=0.03)
    control = night.cases["ddp/versioned-small/weak@1cpu+setup=control"].values
    assert control["step_time"].value == pytest.approx(1.25 * kept["step_time"].value, rel=0.03)


@pytest.mark.parametrize(
    ("given", "message"),
    [("nowhere/python", "no such program"), ("true", "its agents do not start")],
)
@pytest.mark.full
def test_an_invalid_control_environment_is_named(
    given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*CASE, "--results", str(tmp_path), "--no-timeline", "--no-fabric"]
    assert main(["run", *words, "--control", given]) in (4, 11)
    assert message in capsys.readouterr().err


def install(folder: Path, first: int) -> str:
    """Return a command that installs versions, which are slow from ``first`` on."""
    script = folder / "install.sh"
    script.write_text(
        '#!/bin/sh\n[ "$1" = 3 ] && { echo no such version; exit 1; }\n'
        f'slower=0; [ "$1" -ge {first} ] && slower=0.1\nmkdir -p "$2/bin"\n'
        "printf '#!/bin/sh\\nexec env PLANTED_SLOWER=%s %s \"$@\"\\n' "
        f'$slower {sys.executable} > "$2/bin/python"; chmod +x "$2/bin/python"\n'
    )
    return f"sh {script} {{version}} {{folder}}"


@pytest.mark.full
def test_the_first_slow_version_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = "--versions", ",".join(map(str, range(1, 7)))
    words = ["compare", "bisect", *CASE, "--good", "1", "--bad", "6", *versions, "--skip", "3"]
    words += ["--install", install(tmp_path, 5), "--results", str(tmp_path), "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["last_good"], document["first_bad"]) == ("4", "5")
    assert document["sure"] >= 0.95 and document["longer"] == pytest.approx(0.1, abs=0.03)
    measured = {p["version"] for p in document["probes"]}
    assert {"4", "5", "6"} <= measured <= {"2", "4", "5", "6"}
    assert main(["verify", document["run"]]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--good", "1", "--bad", "9", "--versions", "1,2"], "'9' is not among the versions"),
        (["--good", "2", "--bad", "1", "--versions", "1,2"], "does not come after"),
        (["--good", "HEAD", "--bad", "HEAD"], "no commits between"),
        pytest.param(
            ["--good", "1", "--bad", "3", "--versions", "1,2,3"],
            "version 3 cannot be installed",
            marks=pytest.mark.full,
        ),
        (["--good", "1", "--bad", "2", "--versions", "1,2", "--error", "2"], "between 0 and 0.5"),
    ],
)
def test_an_impossible_bisection_is_refused_with_a_reason(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--install", install(tmp_path, 9), "--results", str(tmp_path), "--repo", str(ROOT)]
    assert main(["compare", "bisect", *CASE, *words, *more]) in (4, 11)
    assert message in capsys.readouterr().err


def test_commits_between_two_are_in_order(tmp_path: Path) -> None:

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    made = []
    for i in range(4):
        git("commit", "--allow-empty", "-qm", str(i))
        made.append(git("rev-parse", "HEAD"))
    assert between(made[0], "HEAD", tmp_path) == tuple(made)


@pytest.mark.full
def test_two_environments_are_compared_in_the_same_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They differ by 5 %; separate runs could detect no less than 3 %."""
    a, b = python(tmp_path / "a/bin/python", 0.0), python(tmp_path / "b/bin/python", 0.05)
    words = [str(a.parents[1]), str(b), "--interleave", CASE[0], *CASE[1:]]
    words += ["--set", "versioned.noise=0.002", "--results", str(tmp_path / "results")]
    assert main(["compare", *words, "--fail-on", "worse", "--json"]) == 1
    (document,) = json.loads(capsys.readouterr().out)["cases"]
    assert document["reading"] == "B worse" and document["ratio"] == pytest.approx(
        1 / 1.05, rel=0.01
    )
    assert document["low"] < document["ratio"] < document["high"] < 1.0
    assert main(["compare", "nowhere", str(b), "--interleave", CASE[0], *CASE[1:]]) == 4
    assert "nowhere is no Python environment" in capsys.readouterr().err
