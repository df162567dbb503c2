"""The command ``new``: write a folder of suites and thresholds to start from."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.base import files, shipped
from harness.base.errors import SpecError
from harness.host import machine, vendor
from harness.interface.cli.answer import Answer, Asked

HELP = {
    "new": "write a folder of suites and thresholds to start from",
}
EXAMPLES = {
    "new": (
        "new scaling",
        "new suites --all",
    ),
}
START = Path(__file__).parents[2] / "start"


class WrittenFiles(TypedDict):
    files: Sequence[str]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "new": (WrittenFiles,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("folder", nargs="?", type=Path, default=Path("scaling"), metavar="DIR")
    sub.add_argument(
        "--all",
        action="store_true",
        help="copy all default suites to DIR, and the sample runs to results/samples",
    )


def act(asked: Asked) -> Answer:
    """Write files that run unchanged on this machine; existing files are never overwritten."""
    folder = asked.options.folder
    if asked.options.all:
        return _copied({"suites": folder, "results/samples": Path("results/samples")})
    gpus = len(vendor.gpus())
    here = machine.detect()
    facts = {
        "folder": folder,
        "gpus": gpus,
        "device": "cuda" if gpus else "cpu",
        "ranks": gpus or min(2, here.num_cores),
        "link": str(here.fabric.link) if here.fabric else "",
        "source": "requirement",
        "note": "a floor: scaleproof history baseline set RUN stores what this hardware reaches"
        if gpus
        else "mechanics only: cores share caches, a memory bus and background load",
    }
    environment = Environment(
        loader=FileSystemLoader(START),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    names = [path.name.removesuffix(".jinja") for path in sorted(START.glob("*.jinja"))]
    if there := [name for name in names if (folder / name).exists()]:
        raise SpecError(
            f"{folder / there[0]} exists already",
            expected="a new folder",
            fix="scaleproof new another_folder",
        )
    texts = {folder / name: environment.get_template(f"{name}.jinja") for name in names}
    with files.writing_to(folder):
        files.write({path: template.render(facts) for path, template in texts.items()})
    lines = [f" wrote    {folder / name}" for name in names]
    unit = f"--gpus {gpus}" if gpus else f"--cpus {facts['ranks']}"
    lines += [f" next     scaleproof run plan {folder} {unit}", f" then     pytest {folder} {unit}"]
    return Answer(document={"files": [str(folder / name) for name in names]}, lines=lines)


def _copied(targets: Mapping[str, Path]) -> Answer:
    """Copy the shipped folders of these names; existing folders are never changed."""
    for target in targets.values():
        if target.exists():
            raise SpecError(
                f"{target} exists already",
                expected="a new folder",
                fix="mkdir another && cd another && scaleproof new suites --all",
            )
    for name, target in targets.items():
        source = shipped.folder(name)
        if source is None:
            raise SpecError(f"{name} is missing in this installation", fix="pip install scaleproof")
        with files.writing_to(target):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    tiers = '[pytest]\naddopts = -m "not nightly and not acceptance"\n'
    files.put(targets["suites"] / "pytest.ini", tiers.encode(), "DIR")
    unit = f"--gpus {len(gpus)}" if (gpus := vendor.gpus()) else "--cpus 2"
    suites = targets["suites"]
    return Answer(
        document={"files": [str(target) for target in targets.values()]},
        lines=[
            *(f" wrote    {target}" for target in targets.values()),
            f" next     scaleproof run plan {suites} {unit}",
            f" then     pytest {suites} {unit}",
        ],
    )
