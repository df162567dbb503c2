"""The start screen and the overview of commands are short and complete, and every command in them
exists.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from harness.cases.rules import load_thresholds
from harness.interface.cli import index
from harness.interface.cli.main import commands, main, parsed
from harness.interface.report.templates import templates

ROOT = Path(__file__).parents[3]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_without_arguments_a_short_start_screen_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys)
    assert len(lines) <= 14 and all(len(line) <= 80 for line in lines)


def test_commands_of_the_start_screen_exist() -> None:
    for _, typed in index.WANTED:
        for command in typed.replace("&&", ";").split(";"):
            program, *words = shlex.split(command)
            if program == "scaleproof" and words != ["--help"]:
                assert " ".join(words).startswith(parsed(words).command)


def test_the_overview_fits_on_a_screen_and_has_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    overview = shown(capsys, "--help")
    assert len(overview) <= 30 and all(len(line) <= 80 for line in overview)
    words = set(re.findall(r"[\w-]+", " ".join(overview)))
    whole = shown(capsys, "--help-all")
    for command in commands():
        assert words >= set(command.split())
        assert any(line.strip().startswith(command) for line in whole), command
    assert "More" not in words, "every group must have a title"


def test_there_are_about_twelve_commands() -> None:
    groups = {command.partition(" ")[0] for command in commands()}
    assert groups == {group for groups in index.GROUPS.values() for group in groups}
    assert len(groups) == 12


@pytest.mark.parametrize("old", index.OLD_NAMES)
def test_an_old_name_is_accepted_and_prints_the_new_one(
    capsys: pytest.CaptureFixture[str], old: str
) -> None:
    new = index.OLD_NAMES[old]
    with pytest.raises(SystemExit):
        main([old, "--help"])
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: scaleproof {new} ")
    assert f"note: `scaleproof {old}` is now `scaleproof {new}`" in err


def test_a_group_that_is_no_command_lists_its_subcommands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, "faults")
    assert any("faults goodput" in line for line in lines)
    assert main(["faults", "goodputt"]) == 4
    assert "did you mean 'goodput'?" in capsys.readouterr().err


def test_a_misspelt_command_or_old_name_suggests_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for typed, meant in (("reprot", "report"), ("doctr", "check")):
        assert main([typed]) == 4
        assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_help_shows_the_main_options_and_help_all_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["run", option])
        texts.append(capsys.readouterr().out)
    brief, whole = texts
    assert "--gpus" in brief and "--nonce" not in brief and "--help-all" in brief
    assert "--nonce" in whole and brief.count("--") < whole.count("--")


@pytest.mark.parametrize("link", ["", "nvswitch", "pcie-peer", "pcie-host"])
def test_bounds_of_new_suites_equal_those_of_the_shipped_suites(link: str) -> None:
    """Compare CPU ranks and 8 GPUs on each fabric."""
    suite = load_thresholds(ROOT / "suites" / "thresholds.toml")
    template = templates(ROOT / "harness" / "interface" / "start")
    ranks, device = (8, "cuda") if link else (2, "cpu")
    words = dict(folder="mine", ranks=ranks, device=device, source="requirement", note="mine")
    text = template.get_template("thresholds.toml.jinja").render(gpus=link, link=link, **words)
    for rule in tomllib.loads(text)["rule"]:
        family = rule["case"].partition("/")[0]
        pattern = f"{family}/decoder-[13]*/weak*" if link else f"{family}/decoder-*/weak"
        (asked,) = (
            r for r in suite
            if r.case == pattern and r.device == device and ranks in r.world
            and (not link or link in r.fabric)
        )  # fmt: skip
        assert (rule["at_least"], rule["baseline"]) == (asked.at_least, asked.baseline)
