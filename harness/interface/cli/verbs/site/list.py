"""``list``: everything that a case can name."""

import argparse
from pathlib import Path

from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.spec import Entry
from harness.spec.catalogue import KINDS

HELP = dict(list="list strategies, models, compressors, engines and suites")
EXAMPLES = dict(
    list=(
        "list",
        "list strategies --path examples/my_files",
    ),
)


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")
    sub.add_argument(
        "--path", action="append", default=[], metavar="DIR", help="folder with your own files"
    )


def act(asked: Asked) -> Answer:
    """A line for each; knobs and sizes where one kind was asked for."""
    kind = asked.options.kind
    known = options.catalogue(asked.options.path, [p for p in [Path("suites")] if p.is_dir()])
    entries = {k: list(known.entries[k].values()) for k in ([kind] if kind else KINDS)}
    lines = []
    for name, of_kind in entries.items():
        wide = max((len(e.name) for e in of_kind), default=0)
        lines.append(name)
        for e in of_kind:
            lines.append(f"  {e.name:<{wide}}  {e.doc}")
            lines += [f"  {'':<{wide}}  {more}" for more in (_more(e) if kind else ())]
    document = {
        name: [
            {"name": e.name, "doc": e.doc, "path": str(e.path), "head": dict(e.head)}
            for e in of_kind
        ]
        for name, of_kind in entries.items()
    }
    return Answer(document=document, lines=lines)


def _more(entry: Entry) -> list[str]:
    knobs = [f"{entry.name}.{k}={v}" for k, v in entry.knobs.items() if k != "version"]
    out = [f"knobs: {', '.join(knobs)}"] if knobs else []
    return [*out, f"sizes: {', '.join(entry.head['SIZES'])}"] if "SIZES" in entry.head else out
