"""Read and verify each run once, and store an entry about it for the pages of a site.

    results -> folders of runs -> an entry each (stored by the folder's content) -> pages

A run that does not verify is shown with the reason, and none of its verdicts counts.
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

#: The file with the entries of a site, in the folder of its pages. Other programs may read it.
FILE = "entries.json"
#: Smallest number of runs for each worker process. Reading fewer takes less time than starting a
#: process.
FEW = 8

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class CaseFigure:
    """A case in a run, with its worst result.

    ``throughput`` is the rate of all ranks together in samples/s. ``text`` is the figure of the
    result with its interval, and is empty if nothing was judged.
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
    """A threshold in a run, with its worst result.

    ``rule`` is the name of the threshold. ``counts`` is the status of the result, in which a waiver
    is considered.
    """

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
    """A run on a site.

    ``doubt`` is the reason why the run does not verify, or empty. If it is set, ``status`` is
    ERROR. ``place`` is the folder of the run relative to the results, and ``key`` identifies the
    content from which the entry was made.
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
        """The headline without its status, which the page shows separately."""
        return self.headline.removeprefix(f"{self.status}: ")

    @property
    def day(self) -> str:
        return self.started_at[:10]

    @property
    def at(self) -> str:
        return self.started_at[:16].replace("T", " ")


def runs_below(results: Path) -> list[Path]:
    """Return the folders of runs; raise SpecError if there is none."""
    folders = sorted({path.parent for path in results.glob("**/record.json") if path.is_file()})
    if not folders:
        raise SpecError(
            f"there is no run below {results}",
            expected="a results folder to which runs were written",
            fix="scaleproof run demo && scaleproof report site results",
        )
    return folders


def entries(
    results: Path, folders: Sequence[Path], kept: Path, note: Callable[[str], None]
) -> tuple[list[SiteEntry], list[str]]:
    """Return an entry for each run, newest first, and a message for each run that cannot be read.

    The file ``kept`` holds the entries of the previous call. A run that has not changed since then
    is not read again.
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
    """Return a run's entry, or a message if it cannot be read."""
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
    """Return the results of ``make`` for all items, in their order.

    If there are many items, they are divided among one process for each CPU core.
    """
    cores = min(len(asked) // FEW, len(os.sched_getaffinity(0)))
    answers = []
    if cores < 2:
        for number, item in enumerate(asked, 1):
            note(number)
            answers.append(make(item))
        return answers
    # Forked processes inherit the modules that are imported here, so they start fast.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:
        for number, answer in enumerate(pool.map(make, asked, chunksize=4), 1):
            note(number)
            answers.append(answer)
    return answers


def keep(kept: Path, every: Sequence[SiteEntry]) -> None:
    """Store the entries for the next call."""
    document = {"package": files.digest_of_package(), "entries": [to_doc(entry) for entry in every]}
    write_text(kept, json.dumps(document, separators=(",", ":")))


def _kept(file: Path) -> Sequence[SiteEntry]:
    """Return the stored entries, or none if another version of this package wrote them."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["package"] != files.digest_of_package():
            return ()
        return list(from_doc(tuple[SiteEntry, ...], document["entries"]))
    except (OSError, ValueError, KeyError, TypeError, RecordError):
        return ()


def stamp(folder: Path) -> str:
    """Return a digest of everything that an entry depends on.

    An entry depends on every byte of the run. It also depends on the folder of the run, because the
    entry links to the page in that folder. Return an empty text if the digest is unknown. Such a
    run is read in every call.
    """
    key = verify_cache.key_of(folder)
    return "" if key is None else hashlib.sha256(f"{folder}\0{key}".encode()).hexdigest()


def entry_of(run: RunRecord, place: str, key: str, doubt: str) -> SiteEntry:
    """Return the entry of one run.

    ``doubt`` is the reason why the run does not verify, or empty.
    """
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
    """Return each case once, with its worst result. Among equal ones, an efficiency wins."""
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
    """Return a sort key.

    The worst status comes first, then results with a threshold, with a value, and of efficiency.
    """
    return (
        SEVERITY.index(result.counts),
        result.rule is None,
        result.value is None,
        result.metric != "efficiency",
    )


def _rules(run: RunRecord) -> list[RuleFigure]:
    rules = {threshold.name: threshold for threshold in run.thresholds}
    shown: dict[str, RuleFigure] = {}
    for result in required(run):  # The worst results come first.
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
