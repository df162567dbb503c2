"""The command ``report publish``: send runs to other tools, such as MLflow."""

import argparse
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.analysis.verify import refuse_unsealed
from harness.base.errors import SpecError
from harness.cases import heads
from harness.cases.heads import read_head
from harness.interface.cli.answer import Answer, Asked

HELP = {
    "report publish": "send runs to other tools, such as Bencher, MLflow or W&B",
}
EXAMPLES = {
    "report publish": (
        "report publish RUN --in bencher --to bencher.json",
        "report publish RUN --in mlflow --to file:mlruns",
    ),
}


class Published(TypedDict):
    sink: str
    to: str
    says: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "report publish": (Published,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sinks = {path.stem: read_head(path)[1]["SINK"] for path in heads.files("SINK")}
    listed = "; ".join(f"{name}: {about}" for name, about in sinks.items())
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument("--in", dest="sink", required=True, choices=tuple(sinks), help=listed)
    sub.add_argument("--to", help="file, folder, server or project (default: the tool's default)")


def act(asked: Asked) -> Answer:
    """Publish verified runs; raise an error for a run that does not verify."""
    args = asked.options
    sink = _sink(args.sink)
    runs = []
    for path in args.runs:
        folder = path if path.is_dir() else path.parent
        run = load(path)
        refuse_unsealed(run, folder)
        runs.append((run, folder))
    to = args.to or sink.TO
    says = sink.publish(runs, to)
    document: Published = {"sink": args.sink, "to": to, "says": says}
    return Answer(document=document, lines=[f" {says}"])


def _sink(name: str) -> ModuleType:
    """Return the module of a tool; raise SpecError if its package is not installed."""
    path = next(p for p in heads.files("SINK") if p.stem == name)
    package = read_head(path)[1].get("PACKAGE", "")
    if package and importlib.util.find_spec(package) is None:
        raise SpecError(
            f"--in {name} needs the package {package}",
            expected=f"{package} in this environment",
            fix=f"pip install 'scaleproof[{package}]'",
        )
    return importlib.import_module(heads.name_of(path))
