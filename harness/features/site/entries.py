"""Entries: what a site says of each run, read and verified once.

    results -> folders of runs -> an entry each (kept by what lies in the folder) -> pages

A run whose figures nobody vouches for is shown with the reason, and none of its verdicts counts.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from harness.analysis import verify_cache
from harness.analysis.ladder import arm_row
from harness.analysis.results import Result, defects, required, results, tally
from harness.base import files
from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError, SpecError
from harness.interface.report import figures
from harness.interface.report.headline import headline
from harness.record import RunRecord, Status
from harness.record.outcome import SEVERITY
from harness.record.store import write_text

#: What the entries of a site are kept in, beside its pages; programs may read it, too.
FILE = "entries.json"
#: So few runs are read sooner than processes are started.
FEW = 8

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class CaseFigure:
    """A case in a run: ``throughput`` in samples/s of all ranks, and its worst result.

    ``text`` is the figure of that result with its judged interval; empty if nothing was judged.
    """

    case: str
    ladder: str
    world_size: int
    stand_in: bool
    status: Status
    throughput: float | None
    metric: str
    value: float | None
    low: float | None
    high: float | None
    against: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RuleFigure:
    """A rule in a run, with the worst of what it judged. ``counts`` is after a waiver."""

    rule: str
    pattern: str
    metric: str
    bound: str
    source: str
    waived: bool
    case: str
    counts: Status
    value: float | None
    low: float | None
    high: float | None
    stand_in: bool


@dataclass(frozen=True, kw_only=True)
class SiteEntry:
    """A run. ``doubt`` is why nobody vouches for it; then ``status`` is ERROR. ``place`` is its
    folder below the results, ``key`` what the entry was made from.
    """

    run: str
    place: str
    key: str
    started_at: str
    complete: bool
    machine: str
    title: str
    torch: str
    command: str
    status: Status
    headline: str
    tally: str
    doubt: str
    cases: tuple[CaseFigure, ...]
    rules: tuple[RuleFigure, ...]

    @property
    def says(self) -> str:
        """The headline without its status, which stands beside it."""
        return self.headline.removeprefix(f"{self.status}: ")

    @property
    def day(self) -> str:
        return self.started_at[:10]

    @property
    def at(self) -> str:
        return self.started_at[:16].replace("T", " ")


def runs_below(results: Path) -> list[Path]:
    """The folders of runs; SpecError where there is none."""
    folders = sorted({path.parent for path in results.glob("**/record.json") if path.is_file()})
    if not folders:
        raise SpecError(
            f"no run below {results}",
            expected="a folder of results, as runs are written to",
            fix="scaleproof run demo && scaleproof report site results",
        )
    return folders


def entries(
    results: Path, folders: Sequence[Path], kept: Path, note: Callable[[str], None]
) -> tuple[list[SiteEntry], list[str]]:
    """An entry for each run, newest first, and what could not be read, and why.

    Those of the last time are in the file ``kept``; a run that is as it was then is not read again.
    """
    known = {e.key: e for e in _kept(kept) if e.key}
    keys = {folder: stamp(folder) for folder in folders}
    new = [(results, folder, key) for folder, key in keys.items() if key not in known]
    read = on_all_cores(_read, new, lambda n: note(f"reading and verifying run {n} of {len(new)}"))
    by_folder = dict(zip((folder for _, folder, _ in new), read, strict=True))
    every = [known[keys[path]] if path not in by_folder else by_folder[path] for path in folders]
    out = [entry for entry in every if isinstance(entry, SiteEntry)]
    out.sort(key=lambda e: (datetime.fromisoformat(e.started_at).timestamp(), e.run), reverse=True)
    return out, [why for why in every if isinstance(why, str)]


def _read(asked: tuple[Path, Path, str]) -> SiteEntry | str:
    """A run's entry; or why there is none."""
    results, folder, key = asked
    place = str(folder.relative_to(results))
    try:
        run, doubt = verify_cache.vouched(folder)
        return entry_of(run, place, key, doubt)
    except RecordError as error:
        return f"{place}: {error.what}"


def on_all_cores(
    make: Callable[[A], B], asked: Sequence[A], note: Callable[[int], None]
) -> list[B]:
    """Calls ``make`` on each, and returns the results in order; of many in a process a core."""
    cores = min(len(asked) // FEW, len(os.sched_getaffinity(0)))
    answers = []
    if cores < 2:
        for number, item in enumerate(asked, 1):
            note(number)
            answers.append(make(item))
        return answers
    # Forked, each with what is imported here: runs of the same machine are alike.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:
        for number, answer in enumerate(pool.map(make, asked, chunksize=4), 1):
            note(number)
            answers.append(answer)
    return answers


def keep(kept: Path, every: Sequence[SiteEntry]) -> None:
    """For the next time."""
    document = {"package": files.digest_of_package(), "entries": [to_doc(entry) for entry in every]}
    write_text(kept, json.dumps(document, separators=(",", ":")))


def _kept(file: Path) -> Sequence[SiteEntry]:
    """Of another version of this package nothing is taken over."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["package"] != files.digest_of_package():
            return ()
        return list(from_doc(tuple[SiteEntry, ...], document["entries"]))
    except (OSError, ValueError, KeyError, TypeError, RecordError):
        return ()


def stamp(folder: Path) -> str:
    """The stamp of all that an entry was made from: every byte of the run, and where it lies, since
    its page is found by that. Empty where that cannot be said; such a run is read each time.
    """
    key = verify_cache.key_of(folder)
    return "" if key is None else hashlib.sha256(f"{folder}\0{key}".encode()).hexdigest()


def entry_of(run: RunRecord, place: str, key: str, doubt: str) -> SiteEntry:
    """The entry of one run on a site; nobody vouches for it where there is a ``doubt``."""
    counts = [result.counts for result in (*required(run), *defects(run))]
    status = min(counts, key=SEVERITY.index, default=Status.RECORDED)
    return SiteEntry(
        run=run.run,
        place=place,
        key=key,
        started_at=run.started_at,
        complete=run.complete,
        machine=run.machine.key,
        title=run.machine.title,
        torch=run.software.get("torch", "n/a"),
        command=" ".join(run.settings.argv),
        status=Status.ERROR if doubt else status,
        headline=f"NOT VERIFIED: {doubt}" if doubt else headline(run),
        tally=str(tally(run)),
        doubt=doubt,
        cases=() if doubt else tuple(_cases(run)),
        rules=() if doubt else tuple(_rules(run)),
    )


def _cases(run: RunRecord) -> list[CaseFigure]:
    """Each case once, with its worst result; with one on efficiency if several are equally bad."""
    shown: dict[str, CaseFigure] = {}
    for plan in run.plans:
        for arm in plan.arms:
            case = arm.case
            row = arm_row(run, plan, arm)
            if row.throughput is None or case.id in shown:
                continue
            of_case = [result for result in results(run) if result.case_hash == case.hash]
            worst = min(of_case, key=_rank, default=None)
            shown[case.id] = CaseFigure(
                case=case.id,
                ladder=case.family + case.extras,
                world_size=case.world_size,
                stand_in=bool(run.stand_ins(case)),
                status=Status.RECORDED if worst is None else worst.counts,
                throughput=row.throughput,
                metric="" if worst is None else worst.metric,
                value=None if worst is None else worst.value,
                low=None if worst is None else worst.low,
                high=None if worst is None else worst.high,
                against="" if worst is None else worst.against,
                text="" if worst is None else _text(worst),
            )
    return list(shown.values())


def _text(result: Result) -> str:
    figure = figures.figure(result, ".2f")
    return f"{figure} {figures.metric(result)}" if figure else ""


def _rank(result: Result) -> tuple[int, bool, bool, bool]:
    """Worst first; of equal ones those that a threshold judges, and those on efficiency."""
    return (
        SEVERITY.index(result.counts),
        result.rule is None,
        result.value is None,
        result.metric != "efficiency",
    )


def _rules(run: RunRecord) -> list[RuleFigure]:
    rules = {threshold.name: threshold for threshold in run.thresholds}
    shown: dict[str, RuleFigure] = {}
    for result in required(run):  # worst first
        rule = rules.get(result.rule or "")
        if rule is None or rule.name in shown:
            continue
        shown[rule.name] = RuleFigure(
            rule=rule.name,
            pattern=rule.case,
            metric=result.metric,
            bound=result.bound,
            source=str(rule.source),
            waived=rule.waiver is not None,
            case=result.case,
            counts=result.counts,
            value=result.value,
            low=result.low,
            high=result.high,
            stand_in=result.stand_in,
        )
    return list(shown.values())
