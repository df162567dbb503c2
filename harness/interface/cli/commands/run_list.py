"""The command ``run list``: all names that can be used in a case."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.base import shipped
from harness.cases import Catalogue, Entry
from harness.cases.catalogue import KINDS
from harness.cases.heads import USUAL
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text

HELP = {
    "run list": "list strategies, models, compressors, engines and suites",
}
EXAMPLES = {
    "run list": (
        "run list",
        "run list strategies --path examples/my_files",
    ),
}


class NamedEntry(TypedDict):
    name: str
    doc: str
    path: str
    head: Mapping[str, Any]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run list": (Mapping[str, Sequence[NamedEntry]],),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("kind", nargs="?", choices=KINDS, help="list only this kind, in more detail")
    options.add_path(sub)


def act(asked: Asked) -> Answer:
    """Return a line for each name. If a kind is given, add lines on each name's options."""
    kind = asked.options.kind
    catalogue = options.catalogue(
        asked.options.path, [path for path in [Path(shipped.suite("suites"))] if path.is_dir()]
    )
    entries = {k: list(catalogue.entries[k].values()) for k in ([kind] if kind else KINDS)}
    lines = []
    for name, of_kind in entries.items():
        wide = max((len(entry.name) for entry in of_kind), default=0)
        lines.append(name)
        for entry in of_kind:
            lines += text.wrap(f"  {entry.name:<{wide}}  {entry.doc}", text.columns(), wide + 4)
            for more in _more(entry, catalogue) if kind else ():
                lines += text.wrap(f"  {'':<{wide}}  {more}", text.columns(), wide + 6)
    document = {
        name: [
            {
                "name": entry.name,
                "doc": entry.doc,
                "path": str(entry.path),
                "head": dict(entry.head),
            }
            for entry in of_kind
        ]
        for name, of_kind in entries.items()
    }
    return Answer(document=document, lines=lines)


def _more(entry: Entry, catalogue: Catalogue) -> list[str]:
    """Return lines on options and sizes, and on models, precisions and meshes of a strategy."""
    knobs = [f"{entry.name}.{key}={knob}" for key, knob in entry.knobs.items() if key != "version"]
    lines = [f"knobs: {', '.join(knobs)}"] if knobs else []
    lines += [f"sizes: {', '.join(entry.head['SIZES'])}"] if "SIZES" in entry.head else []
    if entry.kind != "strategies":
        return lines
    supports = entry.supports
    if supports.packages:
        lines.append(
            f"packages: {', '.join(supports.packages)} (pip install scaleproof[frameworks])"
        )
    if supports.needs:
        models = catalogue.entries["models"].values()
        able = [
            model.name
            for model in models
            if not supports.misses(model.head, supports.precisions[0])
        ]
        message = f"{', '.join(able) or 'none'} ({', '.join(supports.needs)} in their heads)"
        lines.append(f"trains: {message}")
    if set(supports.precisions) != set(USUAL):
        lines.append(f"precisions: {', '.join(supports.precisions)}")
    if len(supports.dims) > 1:
        shown = [f"for example mesh={mesh}" for mesh in supports.products[:1]]
        lines.append(", ".join([f"mesh: {', '.join(supports.dims)}", *shown]))
    return lines
