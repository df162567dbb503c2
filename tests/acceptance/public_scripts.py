"""Training scripts of others' making, unchanged, on 1, 2 and 4 CPU ranks.

    python tests/acceptance/public_scripts.py [--only NAME ...] [--ranks 1 2] [--cache FOLDER]

Each is fetched at a fixed commit, or comes with a package, and trains on data that is made here.
What asks for a GPU by name is edited, by the words that the list says.
Steps and samples must be exactly those that the script's own arguments say, and those that it
prints where it prints them; what cannot be measured must be refused by the words that the list says.
The list is ``public_scripts.toml``; the packages are those of ``tox -e scripts``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import made_up

from harness.cases import Catalogue, Device, Mode, Protocol, Settings, Site
from harness.cases.script import script_plan
from harness.measure import together
from harness.measure.measurer import moment
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose

LIST = Path(__file__).with_suffix(".toml")
RANKS = (1, 2, 4)
PROTOCOL = Protocol(steps=12, cut=4, min_blocks=1, max_blocks=1)
#: What a script prints of its speed may differ from what is measured by this much.
RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class Script:
    """One entry of the list; its fields are described there."""

    name: str
    words: str
    source: str = ""
    files: tuple[str, ...] = ()
    samples: int = 0
    refused: str = ""
    prints: str = ""
    env: tuple[tuple[str, str], ...] = ()
    beside: str = ""
    clean: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    first_rung: int = 1
    strong: bool = False
    declared: int = 0


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of one launch."""

    script: Script
    ranks: int
    launch: LaunchRecord
    printed_s: float | None  # mean step of the window, as the script prints it

    @property
    def step_s(self) -> float | None:
        return self.launch.steps.mean_s if self.launch.steps is not None else None

    @property
    def samples(self) -> float:
        """Of one step on one rank."""
        steps = self.launch.steps
        return self.launch.consumed / steps.count / self.ranks if steps is not None else 0.0

    @property
    def said(self) -> str:
        """Why it is no evidence; empty if it is."""
        cause = self.launch.cause
        return "; ".join(self.launch.wrong) or (cause.message if cause is not None else "")

    @property
    def right(self) -> bool:
        if self.script.refused and self.ranks > 1:
            return self.script.refused in self.said
        if self.script.refused and not self.script.samples:
            return True
        wanted = self.script.samples / (self.ranks if self.script.strong else 1)
        if self.said or self.samples != wanted:
            return False
        return self.printed_s is None or abs(self.printed_s / (self.step_s or 1) - 1) <= RATE


def listed() -> list[Script]:
    """The list."""
    document = tomllib.loads(LIST.read_text())
    common = document["common"]
    out = []
    for entry in document["script"]:
        words = entry["words"]
        for name, value in common.items():
            words = words.replace(f"<{name}>", value)
        lists = {k: tuple(v) for k, v in entry.items() if isinstance(v, list)}
        lists["edits"] = tuple((old, new) for old, new in entry.get("edits", ()))
        env = tuple(entry.get("env", {}).items())
        out.append(Script(**{**entry, **lists, "words": words, "env": env}))
    return out


def fetched(script: Script, cache: Path, data: Path) -> Path:
    """The folder to run it in: the repository's, as far as it is needed, with the data in it."""
    repository, _, commit = script.source.partition("@")
    root = cache / repository.replace("/", "+") / commit
    for name in script.files:
        file = root / name
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            url = f"https://raw.githubusercontent.com/{repository}/{commit}/{name}"
            with urllib.request.urlopen(url) as answer:
                file.write_bytes(answer.read())
    if script.edits:
        root = edited(script, root)
    for folder in {root, root / script.beside}:
        folder.mkdir(parents=True, exist_ok=True)
        for part in data.iterdir():
            if not (folder / part.name).exists():
                (folder / part.name).symlink_to(part)
    return root


def edited(script: Script, original: Path) -> Path:
    """The folder of a script whose files say something else than the fetched ones."""
    digest = hashlib.sha256(repr(script.edits).encode()).hexdigest()[:8]
    root = original.with_name(f"{original.name}-{digest}")
    texts = {name: (original / name).read_text() for name in script.files}
    for old, new in script.edits:
        if not any(old in text for text in texts.values()):
            raise ValueError(f"{script.name}: no file says {old!r}")
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def measured(session: Session, script: Script, ranks: int) -> Found:
    """One launch on so many ranks."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(max(RANKS),))
    mode = Mode.STRONG if script.strong else Mode.WEAK
    words = shlex.split(script.words)
    plan = script_plan(words, site, mode, script.declared, PROTOCOL, script.first_rung)
    arm = next(a for a in plan.arms if a.case.world_size == ranks)
    session.describe([arm.case])
    session.run.announce([plan])
    (order,) = together.orders(session, plan, [arm], Purpose.PILOT)
    (launch,) = session.launch([order], moment(session, order, {}, []))
    log = session.run.folder / "launches" / launch.launch / "rank0.log"
    return Found(script=script, ranks=ranks, launch=launch, printed_s=printed(script, launch, log))


def printed(script: Script, launch: LaunchRecord, log: Path) -> float | None:
    """The mean step of the window in s, by what the script prints after every step."""
    if not script.prints or not log.is_file() or launch.steps is None:
        return None
    told = [float(x) for x in re.findall(script.prints, log.read_text(errors="replace"))]
    return fmean(told[-launch.steps.count :]) if len(told) >= launch.steps.count else None


def main() -> int:
    """Measure all, print a line each; 1 if one is not as the list says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "public-scripts")
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    data = made_up.everything(asked.cache.resolve() / "data")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    scripts = [s for s in listed() if not asked.only or any(o in s.name for o in asked.only)]
    print(f"{'script':38}{'ranks':>6}{'samples/step':>13}{'step':>9}{'printed':>9}")
    wrong = 0
    for script in scripts:
        if missing := [name for name in script.needs if importlib.util.find_spec(name) is None]:
            print(f"{script.name:38}  not run: {', '.join(missing)} is not installed")
            continue
        folder = fetched(script, asked.cache.resolve(), data)
        with contextlib.chdir(folder), environment(script):
            wrong += sum(not told(f) for f in launches(script, asked))
    print(f"{wrong} launches are not as the list says" if wrong else "all as the list says")
    return min(1, wrong)


def launches(script: Script, asked: argparse.Namespace) -> Iterator[Found]:
    """All launches of a script, by agents that have its variables."""
    all_ranks = [ranks for ranks in asked.ranks if ranks >= script.first_rung]
    settings = Settings(fabric=False, timeline=False, nodes=(max(RANKS),), clean=script.clean)
    session = Session(
        Catalogue(), settings, Path(tempfile.mkdtemp(dir=asked.results)), (), Progress()
    )
    try:
        for _ in range(asked.repeats):
            yield from (measured(session, script, ranks) for ranks in all_ranks)
    finally:
        session.close()


@contextlib.contextmanager
def environment(script: Script) -> Iterator[None]:
    """The variables that a script asks for."""
    before = dict(os.environ)
    os.environ.update(dict(script.env))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def told(found: Found) -> bool:
    """Print one launch; whether it is as the list says."""
    mark = "" if found.right else "  WRONG"
    step = f"{1e3 * found.step_s:.1f}ms" if found.step_s else "-"
    own = f"{1e3 * found.printed_s:.1f}ms" if found.printed_s else ""
    line = f"{found.script.name:38}{found.ranks:>6}{found.samples:>13g}{step:>9}{own:>9}{mark}"
    print(line, flush=True)
    if found.said and (found.ranks > 1 or not found.script.refused):
        print(f"      {found.said[:600]}", flush=True)
    return found.right


if __name__ == "__main__":
    sys.exit(main())
