"""A user's own training as a plan: the command as it is typed, run unchanged on every rung."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import SpecError
from harness.spec.case import SCRIPT, Mode
from harness.spec.plan import Plan
from harness.spec.recipes import REAL, Recipe, ladder
from harness.spec.site import Site

#: What a command may begin with and mean the same.
PYTHON = ("python", "python3")
EXAMPLE = "scaleproof run --script --cpus 2 -- train.py --lr 3e-4"


@dataclass(frozen=True, kw_only=True)
class Command:
    """What each rank runs: a Python file, or with ``module`` what ``python -m`` takes."""

    target: str
    module: bool
    args: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the case is called: the file's stem, or the module's last name."""
        stem = self.target.rpartition(".")[2] if self.module else Path(self.target).stem
        return "".join(c if c.isalnum() else "_" for c in stem)


def parse(words: Sequence[str]) -> Command:
    """``train.py ARGS``, ``python train.py ARGS`` or ``-m package.train ARGS``."""
    rest = list(words)
    if rest and Path(rest[0]).name in PYTHON:
        rest = rest[1:]
    if not rest:
        raise SpecError("no script to run", expected="-- train.py ARGS", fix=EXAMPLE)
    if rest[0] == "-m":
        if len(rest) == 1:
            raise SpecError("-m without a module", expected="-m package.train", fix=EXAMPLE)
        return Command(target=rest[1], module=True, args=tuple(rest[2:]))
    if not rest[0].endswith(".py"):
        raise SpecError(
            f"{rest[0]!r} is no Python file", where=shlex.join(words),
            expected="train.py, python train.py or -m package.train, then its arguments",
            fix=EXAMPLE,
        )  # fmt: skip
    return Command(target=rest[0], module=False, args=tuple(rest[1:]))


def script_plan(words: Sequence[str], site: Site, mode: Mode = Mode.WEAK, samples: int = 0) -> Plan:
    """A ladder of a script over the site's worlds, against itself on one rank.

    Args:
        words: the command, as in a shell.
        samples: samples of a step on one rank, where they cannot be counted; 0 = they are counted.
    """
    command = parse(words)
    if not command.module and not Path(command.target).is_file():
        raise SpecError(
            f"{command.target}: no such file", where=str(Path.cwd()),
            expected="a Python file, as from this folder", fix=f"ls {Path(command.target).parent}",
        )  # fmt: skip
    if site.world_size < 2:
        raise SpecError(
            "one rank has nothing to be compared with", expected="at least 2 ranks", fix=EXAMPLE
        )
    case = replace(
        site.case(f"{SCRIPT}/{command.name}-own", mode),
        script=shlex.join(words),
        samples_per_step=samples or None,
    )
    return ladder(case, site.worlds, baselines=("wrapped",), protocol=REAL, shape=site.shape)


def script(*words: str, mode: str = Mode.WEAK, samples: int = 0) -> Recipe:
    """A recipe for ``@scaling``: ``script("train.py", "--lr", "3e-4")``."""

    def recipe(site: Site) -> list[Plan]:
        return [script_plan(words, site, Mode(mode), samples)]

    recipe.__name__ = parse(words).name
    return recipe
