"""The command ``report site``: write every run below a folder as static pages."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.base.errors import Exit, SpecError
from harness.features.site.entries import FILE, entries, keep, runs_below
from harness.interface.cli.answer import Answer, Asked
from harness.interface.options import usual_results
from harness.interface.report import text

HELP = {
    "report site": "write a static site of all runs",
}
EXAMPLES = {
    "report site": (
        "report site results --to public",
        "report site results --name 'Team A'",
    ),
}


class SitePages(TypedDict):
    page: str
    runs: int
    not_verified: Sequence[str]
    unreadable: Sequence[str]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "report site": (SitePages,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("results", nargs="?", type=Path, default=usual_results(), metavar="DIR")
    sub.add_argument(
        "--to", type=Path, metavar="DIR", help="folder to write to (default: results/site)"
    )
    sub.add_argument("--name", default="scaleproof", help="name of the site")


def act(asked: Asked) -> Answer:
    """Read new runs and write all pages; runs that do not verify are marked."""
    from harness.features.site import pages

    args = asked.options
    to = args.to or usual_results() / "site"
    if to.is_dir() and any(to.iterdir()) and not (to / FILE).is_file():
        raise SpecError(
            f"--to {to}: the folder contains other files",
            expected="a new folder, or a site that this command wrote",
            fix=f"scaleproof report site {args.results} --to {to.with_name(to.name + '_site')}",
        )
    try:
        folders = [path for path in runs_below(args.results) if to not in path.parents]
        every, unreadable = entries(args.results, folders, to / FILE, _progress)
        if not every:
            raise SpecError(
                f"no run below {args.results} can be read: {unreadable[0]}",
                expected="a run whose files are complete and unchanged",
                fix=f"scaleproof verify {folders[0]}",
            )
        to.mkdir(parents=True, exist_ok=True)
        pages.render_reports(args.results, every, to, _progress)
        pages.write(args.results, every, unreadable, to, args.name)
        keep(to / FILE, every)
    finally:
        _progress("")
    doubtful = [f"{entry.place}: {entry.doubt}" for entry in every if entry.doubt]
    lines = [f" site     {text.shown(to / 'index.html')}: {len(every)} runs"]
    lines += [f" NOT VERIFIED: {line}" for line in doubtful]
    lines += [f" not readable: {line}" for line in unreadable]
    wrapped = [part for line in lines for part in text.wrap(line, text.columns(), 10)]
    document: SitePages = {
        "page": str(to / "index.html"),
        "runs": len(every),
        "not_verified": doubtful,
        "unreadable": unreadable,
    }
    bad = Exit.FAILED if doubtful or unreadable else Exit.PASSED
    return Answer(document=document, lines=wrapped, exit=bad)


def _progress(line: str) -> None:
    """Replace the progress line on stderr, if stderr is a terminal."""
    if sys.stderr.isatty():
        text.put(sys.stderr, f"\r{line}\033[K")
        sys.stderr.flush()
