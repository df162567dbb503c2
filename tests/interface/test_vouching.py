"""A run whose figures do not follow from its samples never succeeds, whichever command reads it.

The imports of a command show whether it reads records. Each such command is tried here with all its
switches, or its head states why nothing depends on what it reads (``UNVOUCHED``).
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import Exit, LaunchError, RecordError
from harness.base.programs import PACKAGE
from harness.cases.heads import read_head
from harness.features.foresight.commands import predict
from harness.features.history.ingest import ingest
from harness.interface.cli import main as program
from harness.interface.cli.commands import jobs
from harness.interface.cli.main import commands, main
from harness.interface.offered import OPTIONS
from harness.measure import run as resume
from harness.record.store import load
from tests.editing import change, rechain, timed

#: Functions and modules that return a whole record: (module, name). The main program, which only
#: words errors, is not included.
READERS = {
    ("harness.analysis.reading", "load"),
    ("harness.analysis.reading", "runs_in"),
    ("harness.record.store", "load"),
    ("harness.analysis", "reading"),
    ("harness.record", "store"),
    ("harness.record.chain", "folded"),
    ("harness.record", "archive"),
}
#: Commands and their exit status on a forged run: {} is the run, {honest} another, valid one.
TRIED = {
    "report": ([], Exit.FAILED),
    "verify": ([], Exit.FAILED),
    "accept sign": (["{}", "--key", "{tmp}/key"], Exit.USAGE),
    "check thresholds": (["suites/thresholds.toml", "{}"], Exit.FAILED),
    "compare": (["{}", "{honest}"], Exit.FAILED),
    "compare machines": (["{}", "{honest}"], Exit.FAILED),
    "report export": (["{}", "--to", "{tmp}/out.csv"], Exit.FAILED),
    "report timeline": ([], Exit.FAILED),
    "report advice": ([], Exit.FAILED),
    "history add": (["{}", "--results", "{tmp}/results"], Exit.USAGE),
    "history": (["--results", "{kept}"], Exit.FAILED),
    "report site": (["{kept}"], Exit.FAILED),
    "history baseline": (["set", "{}", "--references", "{tmp}/references"], Exit.USAGE),
    "report publish": (["{}", "--in", "bencher", "--to", "{tmp}/bencher.json"], Exit.USAGE),
    "predict": (["{}", "--calibrate-on", "1,2", "--to", "4"], Exit.FAILED),
    "run plan": (["ddp/decoder-nano/weak", "--on", "{}"], Exit.USAGE),
    "predict thresholds": (["suites/test_weak.py", "--on", "{}"], Exit.USAGE),
    "accept contract": (["check", "{tmp}/agreed.toml", "{}"], Exit.ERROR),
    "accept report": (["{}", "--to", "{tmp}/out"], Exit.ERROR),
    "jobs collect": (["4711"], Exit.FAILED),
    "run": (["--resume", "{}"], Exit.USAGE),
}
#: The output must name the record as the reason, and not a mistake in the arguments.
WHY = re.compile("NOT VERIFIED|NOT VERIFY|does not verify|DIFFERS|was interrupted")
CONTRACT = """[[rule]]
name = "weak"
case = "ddp/decoder-nano/weak"
metric = "efficiency"
unit = "1"
mode = "weak"
baseline = "plain"
world = 2
at_least = 0.5
source = "requirement"
"""


@functools.cache
def imported(path: Path) -> list[tuple[str, str]]:
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]


def module(name: str) -> Path | None:
    """Return the file of a module of this package, or None."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    there = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in there if file.is_file()), None)


def reads_records(command: str) -> bool:
    """Return whether a command, or what it imports from ``interface`` and ``features``, loads a
    record.
    """
    reached = [commands()[command]]
    for path in reached:
        for name, what in imported(path):
            if (name, what) in READERS:
                return True
            if name.startswith(("harness.interface", "harness.features")):
                more = [file for file in (module(f"{name}.{what}"), module(name)) if file]
                reached += [file for file in more if file not in (*reached, Path(program.__file__))]
    return False


def excused(command: str) -> str:
    """Return the reason in a command's head why nothing depends on what it reads."""
    stated = read_head(commands()[command])[1].get("UNVOUCHED", {})
    return str(stated.get(command, ""))


def switches(command: str) -> list[str]:
    """Return the options of a command that take no value, without those of measuring."""
    of_measuring = {option.name.replace("-", "_") for option in OPTIONS}
    of_command = program.parser(command, commands()[command])
    return [
        action.option_strings[-1]
        for action in of_command._actions
        if isinstance(action, argparse._StoreTrueAction)
        and action.dest not in ("json", "help", *of_measuring)
    ]


@pytest.mark.parametrize("command", commands())
def test_every_command_that_reads_a_record_is_tried_or_excused(command: str) -> None:
    tried, why = command in TRIED, excused(command)
    assert not (tried and why), "a command that is tried must have no excuse"
    assert reads_records(command) is (tried or bool(why)), (
        "see UNVOUCHED in commands/accept_archive.py"
    )


@pytest.fixture
def forge() -> Callable[[Path, str], None]:
    """Return an edit that makes two ranks four times as fast and rebuilds the chain; the verdicts
    are judged again.
    """

    def edit(folder: Path, state: str) -> None:
        doc = json.loads((folder / "record.json").read_text())
        for launch in timed(doc, "@2"):
            for rank in launch["ranks"]:
                rank["window_s"] /= 4
        if state == "incomplete":
            doc |= {"complete": False, "verdicts": []}
        (folder / "record.json").write_text(json.dumps(doc))
        (folder / "record.sha256").unlink(missing_ok=True)
        rechain(folder)

    return edit


class Typed:
    """A copy of the sample run, which can be forged, with the arguments of each command for it."""

    def __init__(self, sample: Path, tmp: Path) -> None:
        page = shutil.ignore_patterns("*report*")
        self.tmp = tmp
        self.kept = tmp / "kept"
        self.run = Path(shutil.copytree(sample, self.kept / "runs" / "c607" / "run", ignore=page))
        self.honest = Path(shutil.copytree(sample, tmp / "honest", ignore=page))
        (tmp / "agreed.toml").write_text(CONTRACT)

    def words(self, command: str) -> list[str]:
        given, _ = TRIED[command]
        if "{kept}" in given:
            ingest([self.run], self.kept)
        names = dict(honest=self.honest, tmp=self.tmp, kept=self.kept)
        return [*command.split(), *(w.format(self.run, **names) for w in given or ["{}"])]


@pytest.fixture
def typed(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    made = Typed(sample, tmp_path)
    monkeypatch.setattr(jobs, "collect", lambda *_: made.run)  # There is no scheduler in this test.
    # The sample's steps are too short for the usual limit.
    monkeypatch.setattr("harness.analysis.rungs.PERTURBED", 100.0)
    monkeypatch.setattr(predict, "described", nobody)
    return made


def nobody(*_: object) -> None:
    raise LaunchError("no agent is started here")


@pytest.mark.parametrize("state", ["complete", "incomplete"])
@pytest.mark.parametrize("command", TRIED)
def test_no_reader_makes_a_success_of_it(
    typed: Typed, command: str, state: str, forge: Callable[[Path, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = typed.words(command)
    forge(typed.run, state)
    assert main(words) in (TRIED[command][1], Exit.ERROR), capsys.readouterr()
    out, err = capsys.readouterr()
    text = " ".join((out + err).split())
    assert command == "run" or WHY.search(text), text  # The run is also of another machine.
    assert not list((typed.tmp / "results").glob("nights/*")), "a forged run must not be stored"
    assert not (typed.tmp / "references").exists()


@pytest.mark.parametrize(
    ("command", "switch"), [(command, switch) for command in TRIED for switch in switches(command)]
)
def test_no_switch_makes_a_command_succeed_on_a_forged_run(
    typed: Typed, command: str, switch: str, forge: Callable[[Path, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = typed.words(command)
    forge(typed.run, "complete")
    assert main([*words, switch]) != Exit.PASSED, capsys.readouterr()


#: Commands that also fail on the valid sample, because there is no key and it has no GPUs.
OTHERWISE = {"accept sign", "run", "run plan", "predict thresholds"}


@pytest.mark.parametrize("command", sorted(TRIED.keys() - OTHERWISE))
def test_a_valid_run_is_accepted(
    typed: Typed, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without this, the tests above could pass because every command fails."""
    assert main(typed.words(command)) in (Exit.PASSED, Exit.INCONCLUSIVE), capsys.readouterr()


@pytest.mark.parametrize("forged", [False, True])
def test_a_forged_run_cannot_be_resumed(
    typed: Typed, forged: bool, forge: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """New launches would be judged together with the forged ones."""
    monkeypatch.setattr(resume, "SCHEMA", load(typed.run).schema)
    monkeypatch.setattr(resume, "_edited", lambda run: iter(()))
    if forged:
        forge(typed.run, "incomplete")
    else:
        change(typed.run, lambda doc: doc.update(complete=False))
    machine = load(typed.run).machine
    if forged:
        with pytest.raises(RecordError, match="NOT VERIFIED"):
            resume.unfinished(typed.run, machine)
    else:
        assert resume.unfinished(typed.run, machine).launches
