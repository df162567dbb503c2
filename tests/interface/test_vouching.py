"""Figures that do not follow from their samples give no success, whichever command reads them.

Which commands read a record follows from what they import; each is tried here, with every switch that
it has, or its head says why nothing rests on what it reads (``UNVOUCHED``).
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

#: What hands out a whole record: (module, name). All but the command itself, which words errors.
READERS = {
    ("harness.analysis.reading", "load"),
    ("harness.analysis.reading", "runs_in"),
    ("harness.record.store", "load"),
    ("harness.analysis", "reading"),
    ("harness.record", "store"),
    ("harness.record.chain", "folded"),
    ("harness.record", "archive"),
}
#: Commands as they are typed, with how they end on a forged run: {} is the run, {honest} another one.
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
#: That the record is the reason, and no mistake in the words.
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
    """The file of a module of ours."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    there = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in there if file.is_file()), None)


def reads_records(command: str) -> bool:
    """Whether a command's file, or what it reaches in ``interface`` and ``features``, loads a record."""
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
    """Why nothing rests on what a command reads, by its own head."""
    stated = read_head(commands()[command])[1].get("UNVOUCHED", {})
    return str(stated.get(command, ""))


def switches(command: str) -> list[str]:
    """Options of a command that take no value, less those of measuring."""
    of_measuring = {option.name.replace("-", "_") for option in OPTIONS}
    of_command = program.parser(command, commands()[command])
    return [
        action.option_strings[-1]
        for action in of_command._actions
        if isinstance(action, argparse._StoreTrueAction)
        and action.dest not in ("json", "help", *of_measuring)
    ]


@pytest.mark.parametrize("command", commands())
def test_every_command_that_reads_a_record_is_tried_or_says_why_not(command: str) -> None:
    tried, why = command in TRIED, excused(command)
    assert not (tried and why), "it says that it need not be tried"
    assert reads_records(command) is (tried or bool(why)), (
        "see UNVOUCHED in commands/accept_archive.py"
    )


@pytest.fixture
def forge() -> Callable[[Path, str], None]:
    """Two ranks four times as fast, with a chain that says so; its verdicts are judged anew."""

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
    """Types commands for a copy of the sample, which can be forged."""

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
    monkeypatch.setattr(jobs, "collect", lambda *_: made.run)  # no queue is here
    monkeypatch.setattr("harness.analysis.rungs.PERTURBED", 100.0)  # the sample's steps are short
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
    assert command == "run" or WHY.search(text), text  # that is another machine's, too
    assert not list((typed.tmp / "results").glob("nights/*")), "nothing of it lasts"
    assert not (typed.tmp / "references").exists()


@pytest.mark.parametrize(
    ("command", "switch"), [(command, switch) for command in TRIED for switch in switches(command)]
)
def test_no_switch_makes_a_success_of_it(
    typed: Typed, command: str, switch: str, forge: Callable[[Path, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = typed.words(command)
    forge(typed.run, "complete")
    assert main([*words, switch]) != Exit.PASSED, capsys.readouterr()


#: What no honest run of this sample passes either: there is no key, and it has no GPUs.
OTHERWISE = {"accept sign", "run", "run plan", "predict thresholds"}


@pytest.mark.parametrize("command", sorted(TRIED.keys() - OTHERWISE))
def test_an_honest_run_is_read(
    typed: Typed, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the tests above would show nothing."""
    assert main(typed.words(command)) in (Exit.PASSED, Exit.INCONCLUSIVE), capsys.readouterr()


@pytest.mark.parametrize("forged", [False, True])
def test_a_forged_run_is_not_gone_on_with(
    typed: Typed, forged: bool, forge: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured now would be judged together with it."""
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
