"""The command ``history nightly``: one command for cron, a scheduler or CI."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from harness.base.errors import Exit
from harness.features.history.nightly.stages import NewChange
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text

HELP = {
    "history nightly": "measure the suites, add the run to the history and report changes",
}
EXAMPLES = {
    "history nightly": (
        "history nightly --config nightly.toml",
        "history nightly --again",
    ),
}
#: Commands that need not verify a record, and why.
UNVOUCHED = {
    "history nightly": "it measures its runs itself, and `history add` verifies them",
}


class Told(TypedDict):
    night: str
    exit: int
    headline: str
    counts: Mapping[str, int]
    news: Sequence[NewChange]
    suspicious: Sequence[str]
    page: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "history nightly": (Told,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the configuration, the results folder, and whether to measure again."""
    sub.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration (default: nightly.toml in this folder, if it exists)",
    )
    usual = options.results_of_environment()
    sub.add_argument(
        "--results",
        metavar="DIR",
        default=usual,
        help="folder with the history (default: results)",
    )
    sub.add_argument(
        "--again", action="store_true", help="measure again even if today's run is complete"
    )


def act(asked: Asked) -> Answer:
    """Measure, add the run to the history and report changes, or continue an interrupted call."""
    from harness.features.history.nightly import state
    from harness.features.history.nightly.stages import NightlyRun
    from harness.features.history.report import rows

    args = asked.options
    usual = Path("nightly.toml")
    configured = state.load(args.config or (usual if usual.is_file() else None))
    if args.results:
        configured = replace(configured, results=args.results)

    def say(line: str) -> None:
        sys.stderr.write(f"nightly: {line}\n")
        sys.stderr.flush()

    ended = NightlyRun(configured, say).make(again=args.again)
    shown = []
    if ended.nights and ended.trends:
        shown = rows.lines(ended.nights, ended.trends, text.columns(), every=False)
        shown += ["", f" page     {text.shown(configured.folder / 'history.html')}"]
    return Answer(document=ended.document, lines=shown, exit=Exit(ended.tonight.exit))
