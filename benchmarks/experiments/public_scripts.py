"""Measure public training scripts unchanged on 1, 2 and 4 CPU ranks, and on one GPU.

    python benchmarks/experiments/public_scripts.py [--only NAME ...] [--ranks 1 2] [--results FILE]

Each script is downloaded at a fixed commit, or belongs to a package, and trains on generated data.
If it requires a GPU by name, it is edited as the list says. If the machine has a GPU, scripts for
GPUs also run on one rank.

The results are compared with an independent clock in ``clock``, which has no code in common with
scaleproof and writes the time of every optimizer step (on a GPU, the time when the device has
finished). Steps and samples must be exactly those of the script's arguments. Updates must be
exactly those that the clock has counted, and the throughput must agree within 1 %. Scripts that
cannot be measured must be refused with the message in the list. The script's folder and its data
must be unchanged afterwards, byte for byte.

FILE stores each launch as a line, and successful launches are not repeated. The list is
``public_scripts.toml``, and the packages are those of ``tox -e scripts``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

import made_up
import numpy as np
import torch
from packaging.requirements import Requirement

from harness.cases import Catalogue, Device, Mode, Protocol, Settings, Site
from harness.cases.script import script_plan
from harness.host import doctor
from harness.measure import together
from harness.measure.measurer import moment
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose

LIST = Path(__file__).with_suffix(".toml")
CLOCK = Path(__file__).parent / "clock"
#: Environment variable with the folder of the clock's files.
CLOCKED = "OTHER_CLOCK"
RANKS = (1, 2, 4)
CUT = 4
CPUS = Site(device=Device.CPU, backend="gloo", nodes=(max(RANKS),))
#: A scaling sweep has at least two ranks; only the world with one rank is launched.
GPU = Site(device=Device.CUDA, backend="nccl", nodes=(2,))
#: Largest relative difference from the independent clock, and from what a script prints.
RATE = 0.01
THROUGHPUT = "another throughput"
#: Largest number of launches of a script. After a larger difference the launch is repeated with a
#: window of twice the length. The time between the end of a step and the end of the window then has
#: less influence, whereas a real error remains.
WINDOWS = 3


@dataclass(frozen=True, kw_only=True)
class Script:
    """One entry of the list; the list explains its fields."""

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
    steps: int = 20
    groups: int = 1
    device: Device = Device.CPU

    def samples_of_rank(self, ranks: int) -> float:
        """Return the samples of one rank in one step, according to the script's arguments."""
        return self.samples / (ranks if self.strong else 1)

    @property
    def digest(self) -> str:
        """The digest of all fields of the entry."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Clocked:
    """The window as the independent clock saw it: ranks, updates of each rank, and the length in s."""

    ranks: int
    updates: tuple[int, ...]
    window_s: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one launch: a line of the results."""

    name: str
    digest: str
    ranks: int
    step_s: float | None = None
    samples: float = 0.0
    window: int = 0  # number of times that the window was doubled
    wanted: int = 0  # requested steps of the window
    steps: int = 0
    updates: int = 0
    clocked: Clocked | None = None
    off: float | None = None  # throughput relative to the clock's, minus 1
    printed_off: float | None = None  # mean step relative to what the script prints, minus 1
    said: str = ""  # the error message of the launch
    untouched: bool = True  # whether the folder and the data are unchanged
    wrong: str = ""  # the first difference from the list

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Outcome:
        clocked = document["clocked"]
        seen = None
        if isinstance(clocked, dict):
            seen = Clocked(**{**clocked, "updates": tuple(clocked["updates"])})
        return cls(**{**document, "clocked": seen})  # type: ignore[arg-type]


def listed() -> list[Script]:
    """Return the entries of the list."""
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
        device = Device(entry.get("device", Device.CPU))
        out.append(Script(**{**entry, **lists, "words": words, "env": env, "device": device}))
    return out


def installed(need: str) -> bool:
    """Return whether a package is installed in a version that the requirement allows."""
    requirement = Requirement(need)
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def fetched(script: Script, cache: Path, data: Path) -> Path:
    """Return the folder to run the script in, with the downloaded files and links to the data."""
    repository, _, commit = script.source.partition("@")
    root = cache / (repository or "packages").replace("/", "+") / commit
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
        for part in itertools.chain(*(home.iterdir() for home in homes(script, data))):
            link = folder / part.name
            if not link.exists():
                link.unlink(missing_ok=True)  # a link whose target is gone
                link.symlink_to(part)
    return root


def homes(script: Script, data: Path) -> list[Path]:
    """Return the folders with the data that the script reads."""
    photographs = data.with_name(made_up.PHOTOGRAPHS)
    return [data, photographs] if "coco" in script.words else [data]


def edited(script: Script, original: Path) -> Path:
    """Return a folder with edited copies of the script's files."""
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


def measured(session: Session, script: Script, ranks: int, ticks: Path) -> Outcome:
    """Launch a script once on this number of ranks."""
    site = CPUS if script.device is Device.CPU else GPU
    mode = Mode.STRONG if script.strong else Mode.WEAK
    words = shlex.split(script.words)
    protocol = Protocol(steps=script.steps, cut=CUT, min_blocks=1, max_blocks=1)
    plan = script_plan(words, site, mode, script.declared, protocol, script.first_rung)
    arm = next(a for a in plan.arms if a.case.world_size == ranks)
    session.describe([arm.case])
    session.run.announce([plan])
    for file in ticks.iterdir():
        file.unlink()
    (order,) = together.orders(session, plan, [arm], Purpose.PILOT)
    (launch,) = session.launch([order], moment(session, order, {}, []))
    log = session.run.folder / "launches" / launch.launch / "rank0.log"
    cause = launch.cause
    sentence = "; ".join(launch.wrong) or (cause.message if cause is not None else "")
    start = Outcome(
        name=script.name,
        digest=script.digest,
        ranks=ranks,
        said=sentence,
        wanted=order.window.steps - order.window.cut,
    )
    return start if launch.steps is None else completed(start, script, launch, log, ticks)


def completed(
    start: Outcome, script: Script, launch: LaunchRecord, log: Path, ticks: Path
) -> Outcome:
    """Return the result of a launch whose window was measured, with the values of the independent
    clock.
    """
    assert launch.steps is not None
    count = launch.steps.count
    watched = launch.ranks[0].watched
    clocked = clock(launch, ticks)
    off = None
    if clocked is not None and launch.throughput is not None:
        of_world = script.samples_of_rank(start.ranks) * start.ranks * count
        off = launch.throughput / (of_world / clocked.window_s) - 1 if of_world else None
    own_s = printed(script, count, log)
    return replace(
        start,
        step_s=launch.steps.mean_s,
        samples=launch.consumed / count / start.ranks,
        steps=count,
        updates=count * len(watched.optimizers if watched is not None else ()),
        clocked=clocked,
        off=off,
        printed_off=launch.steps.mean_s / own_s - 1 if own_s else None,
    )


def clock(launch: LaunchRecord, ticks: Path) -> Clocked | None:
    """Return the window as the independent clock saw it; None if the clock saw no step before it."""
    files = [np.fromfile(file, np.int64).reshape(-1, 2) for file in sorted(ticks.iterdir())]
    updates = list[int]()
    window_s = list[float]()
    for stamps, rank in itertools.zip_longest(files, launch.ranks):
        if stamps is None or rank is None or rank.window_ns is None:
            return Clocked(ranks=len(files), updates=tuple(updates), window_s=float("nan"))
        first, last = np.searchsorted(stamps[:, 0], rank.window_ns, side="right")
        if not first:
            return None
        updates.append(int(last - first))
        window_s.append(float(stamps[last - 1, 1] - stamps[first - 1, 1]) / 1e9)
    return Clocked(ranks=len(files), updates=tuple(updates), window_s=max(window_s))


def printed(script: Script, count: int, log: Path) -> float | None:
    """Return the mean step time (s) of the window, from what the script prints after every step."""
    if not script.prints or not log.is_file():
        return None
    steps_s = [float(x) for x in re.findall(script.prints, log.read_text(errors="replace"))]
    return fmean(steps_s[-count:]) if len(steps_s) >= count else None


def wrong(script: Script, outcome: Outcome) -> str:
    """Return the first difference from the list; empty if there is none."""
    if not outcome.untouched:
        return "its folder or its data were changed"
    if script.refused and (outcome.ranks > 1 or not script.samples):
        return "" if outcome.ranks == 1 or script.refused in outcome.said else "another refusal"
    if outcome.said or not outcome.steps:
        return "not measured"
    if outcome.samples != script.samples_of_rank(outcome.ranks):
        return f"{script.samples_of_rank(outcome.ranks):g} samples expected"
    if outcome.steps != outcome.wanted:
        return f"{outcome.wanted} steps expected"
    clocked = outcome.clocked
    if clocked is None or clocked.ranks != outcome.ranks:
        return f"the clock saw {0 if clocked is None else clocked.ranks} ranks"
    if set(clocked.updates) != {outcome.updates * script.groups}:
        return f"the clock saw {clocked.updates} updates, not {outcome.updates * script.groups}"
    for off in (outcome.off, outcome.printed_off):
        if off is not None and not abs(off) <= RATE:
            return THROUGHPUT
    return ""


def content(*folders: Path) -> str:
    """Return a digest of all files below the folders: their names, modes, links and bytes."""
    seen = hashlib.sha256()
    for folder in folders:
        for here, names, files in os.walk(folder):
            names.sort()
            for name in sorted((*names, *files)):
                path = Path(here, name)
                seen.update(f"{path} {path.lstat().st_mode:o}\n".encode())
                if path.is_symlink():
                    seen.update(os.readlink(path).encode())
                elif path.is_file():
                    seen.update(hashlib.sha256(path.read_bytes()).digest())
    return seen.hexdigest()


def main() -> int:
    """Measure all, and print a line for each; return 1 if a result is not as listed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "public-scripts")
    parser.add_argument("--results", type=Path, metavar="FILE")
    asked = parser.parse_args()
    data = made_up.everything(asked.cache.resolve() / "data")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    scripts = [s for s in listed() if not asked.only or any(o in s.name for o in asked.only)]
    print(f"{'script':40}{'ranks':>5}{'samples':>8}{'updates':>8}{'step':>9}{'clock':>8}{'own':>7}")
    done = dict(kept(asked.results))
    outcomes = list[Outcome]()
    sessions = Sessions()
    for script in scripts:
        all_ranks = [number for number in asked.ranks if number >= script.first_rung]
        if script.device is Device.CUDA:
            all_ranks = [1]
            if not torch.cuda.is_available():
                print(f"{script.name:40}  not run: it needs a GPU")
                continue
        known = [done[key] for n in all_ranks if (key := (script.digest, n)) in done]
        missing = [name for name in script.needs if not installed(name)]
        fresh: Iterator[Outcome] = iter(())
        if len(known) == len(all_ranks):
            pass
        elif missing:
            print(f"{script.name:40}  not run: it needs {', '.join(missing)}")
        else:
            left = [number for number in all_ranks if (script.digest, number) not in done]
            try:
                folder = fetched(script, asked.cache.resolve(), data)
            except urllib.error.URLError as error:
                print(f"{script.name:40}  not run: {script.source} cannot be fetched ({error})")
                continue
            fresh = launches(script, folder, data, left, sessions)
        for outcome in itertools.chain(known, fresh):
            told(outcome)
            outcomes.append(outcome)
            if asked.results is not None and outcome not in known:
                with asked.results.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    sessions.close()
    summary(outcomes)
    return min(1, sum(bool(x.wrong) for x in outcomes))


def kept(results: Path | None) -> Mapping[tuple[str, int], Outcome]:
    """Return earlier launches by the script's digest and the ranks; incomplete lines are ignored."""
    out = dict[tuple[str, int], Outcome]()
    for line in (
        results.read_text().splitlines() if results is not None and results.exists() else ()
    ):
        with contextlib.suppress(ValueError):
            outcome = Outcome.of(json.loads(line))
            out[outcome.digest, outcome.ranks] = outcome
    return {key: outcome for key, outcome in out.items() if not outcome.wrong}


class Sessions:
    """Runs one session at a time. Scripts with the same variables use the same session and agents."""

    def __init__(self) -> None:
        self.ticks = tempfile.TemporaryDirectory()
        self._held = contextlib.ExitStack()
        self._kind: object = None
        self._session: Session | None = None

    def of(self, script: Script) -> Session:
        kind = script.env, script.clean, script.device
        if self._session is None or kind != self._kind:
            self.close()
            self._kind = kind
            runs = self._held.enter_context(tempfile.TemporaryDirectory())
            self._held.enter_context(environment(script, self.ticks.name))
            settings = Settings(
                fabric=False,
                timeline=False,
                nodes=(max(RANKS),),
                clean=script.clean,
                writes=(self.ticks.name,),
            )
            if script.device is Device.CUDA:
                settings = replace(settings, device=Device.CUDA, nodes=GPU.nodes, shared_gpu=True)
            self._session = Session(Catalogue(), settings, Path(runs), (), Progress())
            self._held.callback(self._session.close)
        return self._session

    def close(self) -> None:
        self._held.close()
        self._session = None


def launches(
    script: Script, folder: Path, data: Path, ranks: Sequence[int], sessions: Sessions
) -> Iterator[Outcome]:
    """Yield the launches of a script for each number of ranks."""
    before = content(folder, *homes(script, data))
    session = sessions.of(script)
    with contextlib.chdir(folder):
        for number in ranks:
            for window in range(WINDOWS):
                longer = replace(script, steps=script.steps << window)
                outcome = measured(session, longer, number, Path(sessions.ticks.name))
                if script.clean:
                    doctor.remove_paths(folder, script.clean)  # like the end of a run
                same = content(folder, *homes(script, data)) == before
                outcome = replace(outcome, digest=script.digest, window=window, untouched=same)
                outcome = replace(outcome, wrong=wrong(script, outcome))
                if outcome.wrong != THROUGHPUT:
                    break
            yield outcome


@contextlib.contextmanager
def environment(script: Script, ticks: str) -> Iterator[None]:
    """Return the variables that a script requests, and those of the independent clock."""
    before = dict(os.environ)
    path = os.pathsep.join(p for p in (str(CLOCK), before.get("PYTHONPATH", "")) if p)
    os.environ.update({**dict(script.env), CLOCKED: ticks, "PYTHONPATH": path})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def told(outcome: Outcome) -> None:
    """Print the outcome of one launch."""
    step = f"{1e3 * outcome.step_s:.1f}ms" if outcome.step_s else "-"
    off = f"{100 * outcome.off:+.2f}%" if outcome.off is not None and not outcome.said else ""
    own = f"{100 * outcome.printed_off:+.1f}%" if outcome.printed_off is not None else ""
    mark = f"  WRONG: {outcome.wrong}" if outcome.wrong else ""
    print(
        f"{outcome.name:40}{outcome.ranks:>5}{outcome.samples:>8g}{outcome.updates:>8}"
        f"{step:>9}{off:>8}{own:>7}{mark}",
        flush=True,
    )
    if outcome.said:
        print(f"      {outcome.said[:600]}", flush=True)


def summary(outcomes: list[Outcome]) -> None:
    """Print a summary in two lines."""
    exact = [x for x in outcomes if not x.wrong and not x.said and x.off is not None]
    refused = [x for x in outcomes if not x.wrong and x.said]
    names = {x.name for x in outcomes}
    failed = sum(bool(x.wrong) for x in outcomes)
    print(
        f"{len(names)} scripts, {len(outcomes)} launches: {len(exact)} exact, {len(refused)}"
        f" refused as the list says, {failed} not as it says"
    )
    if exact:
        offs = sorted(abs(x.off or 0.0) for x in exact)
        print(f"difference from the clock: median {median(offs):.2%}, largest {offs[-1]:.2%}")


if __name__ == "__main__":
    sys.exit(main())
