"""Fixtures: an agent for the session, and a function that launches a case for a test."""

from __future__ import annotations

import dataclasses
import fcntl
import gzip
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness.base.documents import from_doc
from harness.cases import CaseSpec, Catalogue, Device, Mode, Site
from harness.launch import causes
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.fleet import Fleet
from harness.launch.wire.messages import Deadlines, Gate, LaunchSpec, RankEnd, Timed
from harness.record import SCHEMA, Cause, Check, Described, Purpose, RankRecord, RunRecord
from harness.record.store import load
from harness.record.upgrade import upgrade

ROOT = Path(__file__).parents[1]
settings.register_profile("no timing assertion", deadline=None)
settings.load_profile("no timing assertion")
MUTANTS = Path(__file__).parent / "mutants"
#: Folders whose tests start several processes.
LONG = {
    "contract",
    "faults",
    "recovery",
    "history",
    "launch",
    "interface",
    "docs",
    "e2e",
    "acceptance",
    "strict",
}
#: This variable names the test whose processes see it.
WITHIN = "TEST_THAT_RUNS"
pytest_plugins = ["pytester"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but n evenly drawn parameter sets of a test with ``few(n)`` as ``full`` or ``every``.

    Those marked ``full`` cover every pair of values of two parameters, the rest is ``every``. Long
    files come first: the short ones then fill the gaps, and all workers end together.
    """
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("full"):
            alike.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for tests in alike.values():
        (few,) = next(tests[0].iter_markers("few")).args
        drawn = {round((i + 0.5) * len(tests) / few - 0.5) for i in range(few)}
        others = [test for i, test in enumerate(tests) if i not in drawn]
        in_pairs = _cover_of_pairs(others)
        for item in others:
            item.add_marker(pytest.mark.full if item in in_pairs else pytest.mark.every)
    items.sort(key=lambda item: not _takes_long(item.path))


def _cover_of_pairs(tests: list[pytest.Item]) -> set[pytest.Item]:
    """Return tests that contain every pair of parameter values that occurs in any of them.

    A test is taken if it adds many pairs; the required number falls with each pass.
    """
    pairs_of = {test: _pairs(test) for test in tests}
    covered: set[object] = set()
    taken: set[pytest.Item] = set()
    for required in range(max(map(len, pairs_of.values()), default=0), 0, -1):
        for test, pairs in pairs_of.items():
            if len(pairs - covered) >= required:
                covered |= pairs
                taken.add(test)
    return taken


def _pairs(test: pytest.Item) -> set[object]:
    """Return the pairs of parameter values of a test; a single parameter is its own pair."""
    values = getattr(test, "callspec").params.items()  # noqa: B009  (items have no such type)
    named = [(name, repr(value)) for name, value in values]
    return set(itertools.combinations(named, 2)) or set(named)


def _takes_long(path: Path) -> bool:
    """Whether a test's file starts several processes; false outside of this repository."""
    return path.is_relative_to(ROOT) and not LONG.isdisjoint(path.relative_to(ROOT).parts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run tests in parallel, except those marked ``alone``, which run without any other test.

    The turnstile keeps the order of arrival: without it, tests with the shared lock would pass it
    on among themselves, and a test that needs it exclusively would wait until all others have run.
    A run of pytest within a test needs no lock: its test has one.
    """
    if os.environ.get(WITHIN):
        return (yield)
    if (loaded := sys.modules.get("torch")) is not None:
        loaded.set_num_threads(1)  # as in ranks: several workers would compete for cores
    alone = item.get_closest_marker("alone") is not None
    locks = Path(tempfile.gettempdir()) / f"scaleproof-tests-{os.getuid()}"
    with Path(f"{locks}.lock").open("w") as lock:
        with Path(f"{locks}.turnstile").open("w") as turnstile:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(WITHIN, item.name)
            return (yield)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Reset SIGINT: programs of tests started in the background would ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def without_timelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Switch off profiles and fabric sweeps, which take seconds in each suite, and start with an empty
    cache.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("SCALEPROOF_NO_TIMELINE", "1")
        patch.setenv("SCALEPROOF_NO_FABRIC", "1")
        yield


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """The package's files and the mutants."""
    return Catalogue([MUTANTS])


@pytest.fixture(scope="session")
def agent() -> Iterator[Fleet]:
    """An agent for all launches."""
    fleet = open_worlds(Catalogue().get("engines", "local"), Where())
    assert isinstance(fleet, Fleet)
    yield fleet
    fleet.close()


@dataclasses.dataclass
class World:
    """The results of one launch."""

    ends: tuple[RankEnd, ...]
    cause: Cause | None
    ranks: list[RankRecord]
    out: Path
    described: Described
    case: CaseSpec

    @property
    def failed(self) -> list[Check]:
        """Failed checks of all ranks."""
        return [c for r in self.ranks for c in r.checks if not c.ok]


@pytest.fixture
def launch(agent: Fleet, catalogue: Catalogue, tmp_path: Path) -> Any:
    """``launch("ddp/mlp-nano", 2, purpose, precision=...)`` -> World"""
    count = iter(range(1000))

    def run(
        name: str,
        world: int = 2,
        purpose: Purpose = Purpose.GATE,
        *,
        steps: int = 12,
        cut: int = 2,
        profiled: int = 0,
        pairs: int = 0,
        deadlines: Deadlines | None = None,
        mode: Mode = Mode.WEAK,
        tick: Any = lambda step: None,
        **fields: Any,
    ) -> World:
        site = Site(device=Device.CPU, backend="gloo", nodes=(world,))
        case = catalogue.normalise(site.case(name, mode, **fields))
        files = catalogue.files(case)
        described = agent.describe([(case, files)])[0]
        assert not described.unsupported, described.unsupported
        out = tmp_path / f"launch{next(count)}"
        spec = LaunchSpec(
            launch=out.name, case=case, out=str(out), files=files, deadlines=deadlines or Deadlines(),
            task=Gate(twin=catalogue.twin(case)) if purpose is Purpose.GATE
            else Timed(steps=steps, cut=cut, profiled=profiled, pairs=pairs, draw=1),
        )  # fmt: skip
        ended = agent.launch(spec, tick)
        files_ = [out / f"rank{r}.json" for r in range(world)]
        ranks = [from_doc(RankRecord, json.loads(f.read_text())) for f in files_ if f.is_file()]
        return World(
            ended.ranks,
            causes.attribute(ended.ranks, ended.unreachable),
            ranks,
            out,
            described,
            case,
        )

    return run


@pytest.fixture(scope="session")
def sample() -> Path:
    """The folder of a small run in the repository, of schema 6."""
    return ROOT / "tests" / "golden" / "samples" / "ddp-nano"


@pytest.fixture(scope="session")
def sample_run(sample: Path) -> Any:
    """The record of the sample run."""
    return load(sample)


@pytest.fixture
def copy(sample: Path, tmp_path: Path) -> Path:
    """A copy of the sample run's folder, for edits."""
    page = shutil.ignore_patterns("*report.html*")  # another test may be writing one
    return Path(shutil.copytree(sample, tmp_path / "run", ignore=page))


@pytest.fixture(scope="session")
def main_job() -> RunRecord:
    """The record of one ``pytest suites/``: 16 scaling sweeps, real and paced, with profiles."""
    doc = json.loads(gzip.decompress((ROOT / "tests/golden/main-job.json.gz").read_bytes()))
    return from_doc(RunRecord, upgrade(doc, SCHEMA), "record")
