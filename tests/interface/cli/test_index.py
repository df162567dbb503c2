"""The start screen and the overview of verbs: short, complete, and every command of them is one."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from harness.cases.rules import load_thresholds
from harness.interface.cli import index
from harness.interface.cli.main import main, module_of, parser, verbs
from harness.interface.report.templates import templates

ROOT = Path(__file__).parents[3]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_nothing_typed_says_what_to_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys)
    assert len(lines) <= 12 and all(len(line) <= 80 for line in lines)


def test_what_it_says_to_type_is_understood() -> None:
    for _, commands in index.WANTED:
        for command in commands.replace("&&", ";").split(";"):
            program, *words = shlex.split(command)
            if program == "scaleproof" and words != ["--help"]:
                words = words[: words.index("--")] if "--" in words else words
                assert parser(module_of(words)).parse_args(words).verb == words[0]


def test_the_overview_is_a_screen_and_the_whole_has_every_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    overview = shown(capsys, "--help")
    assert len(overview) <= 40 and all(len(line) <= 80 for line in overview)
    words = " ".join(overview).replace(",", " ").replace(":", " ").split()
    assert not any(line.endswith(": more") for line in overview), "every verb has its task"
    whole = shown(capsys, "--help", "all")
    for verb in verbs():
        assert verb in words
        assert any(line.split()[:1] == [verb] for line in whole), verb


@pytest.mark.parametrize(("task", "verb"), [("nodes", "pairs"), ("archive", "sign")])
def test_a_task_before_a_verb_is_the_verb(
    capsys: pytest.CaptureFixture[str], task: str, verb: str
) -> None:
    assert any(line.split()[:1] == [verb] for line in shown(capsys, task))
    with pytest.raises(SystemExit):
        main([task, verb, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: scaleproof {verb} ")
    assert main([task, "nothing"]) == 4
    assert "no verb 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["", "nvswitch", "pcie-peer", "pcie-host"])
def test_what_init_asks_is_what_the_suite_asks(link: str) -> None:
    """On cores, and on 8 GPUs of each fabric."""
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
