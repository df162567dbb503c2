#!/usr/bin/env python
"""Write the reference pages and the drawings of docs/ from the code.

python scripts/pages.py            # options, metrics, API, the last table of keys.md, drawings
python scripts/pages.py --check    # exit 1 if one of them is not up to date
"""

import argparse
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import harness
from harness.analysis.script import check, launches, same_training  # noqa: F401  (they register checks)
from harness.cases import CaseSpec
from harness.cases.heads import FEATURES
from harness.cases.metrics import METRICS
from harness.cases.targets import SETTABLE, takes
from harness.interface.cli.main import commands, parser
from harness.interface.report.script.remark import table

DOCS = ROOT / "docs"
#: Options of every command, which are documented once.
OF_ALL = {"-h", "--json"}


def options() -> str:
    """Return the page on every option of every command, from the parsers."""
    lines = [
        "# Options", "",
        "Every command with its options, as `scaleproof COMMAND --help-all` prints them. `--json`"
        " prints one JSON document. Written by `python scripts/pages.py`.", "",
    ]  # fmt: skip
    for name, path in sorted(commands().items()):
        of_command = parser(name, path, shows_all=True)
        lines += [f"## {name}", "", of_command.description or "", ""]
        rows = [_row(a) for a in of_command._actions if OF_ALL.isdisjoint(a.option_strings)]
        if rows:
            lines += ["| option | is |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def metrics() -> str:
    """Return the page on the metrics that thresholds can name."""
    lines = [
        "# Metrics", "",
        "The metrics that a threshold in `thresholds.toml` can name. A threshold on a ratio names"
        " its baseline and needs no unit. Every other threshold uses the unit of this table. `a/b`"
        " is the quotient of two metrics that are no ratios, for example `sent_bytes/step_s` in"
        " B/s. `logged.NAME` is a metric that a training logs (`docs/extending.md`). If a machine"
        " does not report a metric, a threshold on it is INCONCLUSIVE, with the"
        " reason. Written by `python scripts/pages.py`.", "",
        "| metric | unit | is | better | measured by |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, metric in METRICS.items():
        better = "more" if metric.more_is_better else "less"
        profiled = "a profiled launch" if metric.profiled else "`scaleproof run`, `pytest suites/`"
        by = f"`{metric.measured_by}`" if metric.measured_by else profiled
        lines.append(f"| `{name}` | {metric.unit} | {metric.means} | {better} | {by} |")
    return "\n".join(lines) + "\n"


#: The line above the table of checks.
CHECKS = "If one of these checks fails, it is an ERROR (written by `python scripts/pages.py`):"
#: The line above the table of remarks.
REMARKS = "These observations lead to remarks only (written by `python scripts/pages.py`):"
FIELDS = "## Every field of a case"


def keys() -> str:
    """Return docs/keys.md with a new table of every field of a case that can be set."""
    by_hand = (DOCS / "keys.md").read_text().partition(FIELDS)[0].rstrip()
    lines = [
        by_hand, "", FIELDS, "",
        "`--set NAME=VALUE` sets one of these fields. It also takes `FILE.KNOB=VALUE` (`scaleproof"
        " run list` lists the knobs) and variables like `NCCL_ALGO`. docs/api.md describes the"
        " fields under `CaseSpec`."
        " Written by `python scripts/pages.py`.", "",
        "| field | accepts | default |", "|---|---|---|",
    ]  # fmt: skip
    hints = get_type_hints(CaseSpec)
    for field in dataclasses.fields(CaseSpec):
        if field.name in SETTABLE:
            usual = None if field.default is dataclasses.MISSING else field.default
            shown = {None: "depends on the case", "": "none", (): "none"}.get(usual)
            shown = shown or f"`{json.dumps(usual).strip(chr(34))}`"
            lines.append(f"| `{field.name}` | {takes(hints[field.name], '`')} | {shown} |")
    return "\n".join(lines) + "\n"


def diagnostics() -> str:
    """Return docs/your_own_training.md with new tables of all checks and remarks."""
    page = (DOCS / "your_own_training.md").read_text()
    before = page.partition(CHECKS)[0]
    _, _, after = page.partition(REMARKS)[2].partition("\n### ")
    lines = [before + CHECKS, "", *check.table(), "", REMARKS, "", *table(), "", f"### {after}"]
    return "\n".join(lines)


def _row(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or action.metavar or action.dest
    value = ""
    if action.option_strings and action.nargs != 0:
        value = (
            f" {action.metavar or '|'.join(map(str, action.choices or ())) or action.dest.upper()}"
        )
    text = (action.help or "").replace("%%", "%").replace("|", "\\|")
    text = re.sub(r"%\(default\)s", str(action.default), text)
    return f"| `{name}{value}`".replace("|", "\\|").replace("\\|", "|", 1) + f" | {text} |"


def api() -> str:
    """Return the page on the names in ``harness``, from their docstrings."""
    lines = [
        "# What `harness` offers", "",
        "Suites and users' files import these names from `harness`. The modules that define them"
        " may change. Names from `harness.training` import torch at their first use. Written by"
        " `python scripts/pages.py`.", "",
    ]  # fmt: skip
    for room, names in _by_room().items():
        lines += [f"## {room}", ""]
        for name in names:
            lines += _described(name, getattr(harness, name))
    return "\n".join(lines)


def _by_room() -> Mapping[str, list[str]]:
    titles = {
        "suites and recipes": ("cases", "interface"),
        "results": ("record",),
        "engines": ("launch",),
        "strategies, models, codecs and inputs": ("training",),
    }  # fmt: skip
    places = {name: harness._PLACE[name].split(".")[1] for name in harness.__all__}
    return {
        title: [name for name in harness.__all__ if places[name] in rooms]
        for title, rooms in titles.items()
    }


def _described(name: str, value: Any) -> Iterator[str]:
    """Yield a heading with the name, the signature of a function, and the docstring."""
    signature = ""
    if inspect.isfunction(value):
        signature = str(inspect.signature(value))
        signature = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", signature)
    yield f"### `{name}`"
    yield ""
    if signature:
        yield from ("```python", f"{name}{signature}", "```", "")
    doc = inspect.getdoc(value) if inspect.isroutine(value) or inspect.isclass(value) else None
    if inspect.ismodule(value):
        doc = inspect.getdoc(value)
    if doc and not doc.startswith(f"{name}("):  # not the docstring that a dataclass generates
        yield from (doc, "")


#: The layers of the package with their subjects, from the bottom up. Folders of one row do not
#: import each other.
LAYERS = (
    (("base", "documents, errors, statistics"),),
    (("host", "this machine"),),
    (("cases", "what to measure"),),
    (("record", "what was measured"),),
    (("launch", "starting ranks"), ("analysis", "samples to verdicts")),
    (("training", "the ranks; torch"), ("measure", "the course of a run")),
    (("interface", "commands, pytest, reports"),),
)
STYLE = 'font-family="system-ui,sans-serif" font-size="13" fill="#1b1f24" text-anchor="middle"'


def folders() -> str:
    """Return a drawing of the layers of the package, with the features on top."""
    on_top = sorted(p.name for p in FEATURES.iterdir() if (p / "__init__.py").is_file())
    rows = [*LAYERS, tuple((name, "") for name in on_top)]
    there = {p.name for p in (ROOT / "harness").iterdir() if p.is_dir() and p.name[0] != "_"}
    drawn = {name for row in LAYERS for name, _ in row} | {"features"}
    assert there == drawn, f"draw {there ^ drawn}"
    width, height, gap = 760, 46, 10
    body = []
    for number, row in enumerate(rows):
        y = (len(rows) - 1 - number) * (height + gap) + gap
        size = (width - gap * (len(row) + 1)) / len(row)
        for place, (name, about) in enumerate(row):
            x = gap + place * (size + gap)
            feature = number == len(rows) - 1
            body.append(
                _box(x, y, size, height, name, about, "#eef4ff" if not feature else "#fff4e0")
            )
    total = len(rows) * (height + gap) + 34
    body.append(
        f'<text x="{width / 2}" y="{total - 10}" {STYLE}>Imports point down. Features (top row)'
        " import the core, never each other. The core imports no feature.</text>"
    )
    return _svg(width, total, body, "The folders of harness, as layers")


def verdict() -> str:
    """Return a drawing of the steps of docs/one-verdict.md, from left to right and down."""
    page = (DOCS / "one-verdict.md").read_text()
    steps = re.findall(r"^\| (\d+) \| `([\w.]+)` in `([\w/.]+)` \|", page, re.M)
    width, across, size, height = 760, 4, 172, 58
    body = []
    for number, function, file in steps:
        row, place = divmod(int(number) - 1, across)
        column = place if row % 2 == 0 else across - 1 - place
        x, y = 14 + column * (size + 14), 14 + row * (height + 30)
        color = "#ffe3e3" if function == "judge_values" else "#eef4ff"
        short = file.removeprefix("harness/")
        body.append(_box(x, y, size, height, f"{number}  {function}", short, color))
        if int(number) < len(steps):
            body.append(_arrow(x, y, size, height, row, place == across - 1))
    total = 14 + (-(-len(steps) // across)) * (height + 30)
    return _svg(width, total, body, "One verdict, step by step")


def _box(x: float, y: float, width: float, height: float, name: str, about: str, fill: str) -> str:
    middle, lines = x + width / 2, y + height / 2
    first = lines - 4 if about else lines + 5
    small = STYLE.replace('"13"', '"10"')
    style = STYLE.replace('"13"', '"12"') if len(name) > 20 else STYLE
    label = f'<text x="{middle:.1f}" y="{lines + 13:.1f}" {small}>{escape(about)}</text>'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="6" fill="{fill}"'
        f' stroke="#8aa0b8"/><text x="{middle:.1f}" y="{first:.1f}" {style}'
        f' font-weight="600">{escape(name)}</text>{label if about else ""}'
    )


def _arrow(x: float, y: float, size: float, height: float, row: int, down: bool) -> str:
    if down:
        middle = x + size / 2
        points = f"M{middle:.1f} {y + height:.1f} V{y + height + 28:.1f}"
    elif row % 2 == 0:
        points = f"M{x + size:.1f} {y + height / 2:.1f} H{x + size + 12:.1f}"
    else:
        points = f"M{x:.1f} {y + height / 2:.1f} H{x - 12:.1f}"
    return f'<path d="{points}" stroke="#4a5b6c" fill="none" marker-end="url(#end)"/>'


def _svg(width: float, height: float, body: list[str], title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{title}"><title>{title}</title><defs><marker id="end" viewBox="0 0 8 8"'
        ' refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"'
        ' fill="#4a5b6c"/></marker></defs><rect width="100%" height="100%" fill="#ffffff"/>'
    )
    return "\n".join([head, *body, "</svg>", ""])


PAGES: Mapping[str, Callable[[], str]] = {
    "options.md": options, "metrics.md": metrics, "api.md": api, "keys.md": keys,
    "your_own_training.md": diagnostics,
    "folders.svg": folders, "verdict.svg": verdict,
}  # fmt: skip


def main(words: list[str]) -> int:
    """Write the pages, or with ``--check`` print the pages that are not up to date."""
    old = []
    for name, write in PAGES.items():
        text, path = write(), DOCS / name
        if "--check" not in words:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            old.append(name)
    if old:
        sys.stderr.write(f"not up to date: {', '.join(old)}; run: python scripts/pages.py\n")
    return int(bool(old))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
