"""``verify``: recompute a record from its samples, offline and without torch."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import multiprocessing
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.audit import audit, strays
from harness.analysis.judging import contrast_data, verdicts
from harness.analysis.samples import bits, calibration, figures, references, script
from harness.analysis.timeline.close import budget_of, talks, trace_path
from harness.base import files, host_errors
from harness.base.documents import Json, to_doc
from harness.base.errors import RecordError, ScaleproofError
from harness.base.packs import is_there, opened
from harness.cases import Threshold
from harness.record import (
    ASIDE_SINCE,
    DIRECTED_SINCE,
    JUDGED_SINCE,
    SCHEMA,
    SETTLED_SINCE,
    LaunchRecord,
    LaunchStatus,
    Purpose,
    RankRecord,
    Reason,
    RunRecord,
    Status,
    Verdict,
    chain,
    headers,
)
from harness.record.store import Samples, load_samples

#: Derived numbers may differ by this much, relatively: summation differs by CPU and numpy.
TOLERANCE = 1e-9
#: Launches that have no samples of steps.
_APART = (Purpose.GATE, Purpose.REFERENCE, Purpose.BITS)
#: Launches that are worth the processes which recompute them at once.
MANY = 1_000
#: Bytes a rank beside the closed form that a gate lets pass: the protocol of small messages.
SENT_SLACK = 20_000


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The parts of a run that were recomputed, and every difference that came out.

    Verdicts of an older schema were judged by the rules of its day and are not recomputed.
    ``num_links`` are those of the chain that ends with ``head``; a record without is unchained:
    what it says follows from its samples, but nobody can say that nothing was left out.
    ``signer`` is the key whose signature covers it. ``num_traceless`` profiled launches had no
    traces left: their budgets were taken as recorded; so are the words of verdicts unless they are
    ``worded`` by this very version.
    """

    num_launches: int
    num_samples: int
    num_verdicts: int
    differences: tuple[str, ...]
    num_traceless: int = 0
    num_links: int = 0
    head: str = ""
    signer: str = ""
    worded: bool = False


def verify(run: RunRecord, folder: Path) -> Verification:
    """Recompute launches from samples and verdicts from launches; list what differs.

    A record of which nothing can be computed differs, whatever an attempt at it raises.
    """
    return _beside(run, folder, chain.read(folder))


def _beside(run: RunRecord, folder: Path, links: Sequence[chain.Link]) -> Verification:
    """Verifies a record beside its chain."""
    try:
        if not (unknown := strays(run)):
            return _verified(run, folder, links)
    except ScaleproofError:
        raise
    except Exception as error:
        if (lacking := host_errors.by_host(error)) is not None:
            raise lacking from error
        unknown = [senseless(error)]
    return Verification(num_launches=0, num_samples=0, num_verdicts=0, differences=tuple(unknown))


def senseless(error: Exception) -> str:
    """Says what an exception in the middle of a record's figures says of the record."""
    return f"its figures contradict each other: {type(error).__name__}: {str(error)[:200]}"


def _verified(run: RunRecord, folder: Path, links: Sequence[chain.Link]) -> Verification:
    checked = _all(run, folder, _counted(run))
    differences = [text for replayed in checked for text in replayed.differences]
    for launch in run.launches:
        if launch.purpose is Purpose.GATE:
            differences += let_through(launch.launch, launch.ranks)
    for launch in run.launches:
        if launch.purpose is Purpose.BITS:
            differences += _bits(launch, folder)
    if not differences:
        differences = _windows(run, folder)
    differences += audit(run, folder, links)
    # Of a chain's record the rules of its day are those that were sealed.
    judged_today = run.schema >= JUDGED_SINCE or bool(links)
    again = verdicts.verdicts(run) if judged_today else ()
    if judged_today:
        differences += _verdicts(run, again)
    if run.schema < SCHEMA:
        differences += passed_by_older_rules(run)
    return Verification(
        num_launches=len(checked),
        num_samples=sum(replayed.num_samples for replayed in checked),
        num_verdicts=len(again),
        differences=tuple(differences),
        num_traceless=sum(replayed.traceless for replayed in checked),
        num_links=len(links),
        head=run.head,
        worded=_of_this_version(run),
    )


def _of_this_version(run: RunRecord) -> bool:
    """Whether every launch was made by the very files of this package."""
    made_by = {
        rank.sources.get("scaleproof")
        for launch in run.launches
        for rank in launch.ranks
        if rank.sources
    }
    return made_by == {files.digest_of_package()}


def passed_by_older_rules(run: RunRecord) -> Iterator[str]:
    """A schema says by which rules a verdict was made, and anybody can write an older one: a PASS
    that today's rules do not give is nobody's.
    """
    today = {
        (verdict.plan, verdict.contrast, verdict.rule): verdict
        for verdict in verdicts.verdicts(dataclasses.replace(run, schema=SCHEMA))
    }
    for verdict in run.verdicts:
        now = today.get((verdict.plan, verdict.contrast, verdict.rule))
        if verdict.status is Status.PASS and (now is None or now.status is not Status.PASS):
            says = "nothing" if now is None else f"{now.status}: {now.detail}"
            by = f"a PASS by the rules of schema {run.schema} alone"
            yield f"{verdict.contrast}: {by}, today's say {says}"


def _counted(run: RunRecord) -> list[LaunchRecord]:
    """Every launch that has samples of steps."""
    return [
        launch
        for launch in run.launches
        if launch.purpose not in _APART and launch.status is LaunchStatus.OK
    ]


def misfigured(run: RunRecord, folder: Path) -> str:
    """The first figure of a run, finished or not, that the samples which are there do not give;
    empty if there is none.
    """
    there = [x for x in _counted(run) if (folder / "launches" / x.launch).is_dir()]
    try:
        replayed = _all(run, folder, there)
        return next((text for launch in replayed for text in launch.differences), "")
    except RecordError as error:
        return error.what


def unsealed(run: RunRecord, folder: Path, links: Sequence[chain.Link] | None = None) -> str:
    """Why nobody vouches for what a record says; empty if its chain does, its figures follow from
    its samples, and its verdicts from its figures. ``links`` of who has read the chain already.
    """
    try:
        links = chain.read(folder) if links is None else links
    except RecordError as error:
        return error.what
    if not links:
        return "it has no chain: whether launches were left out cannot be said"
    try:
        differences = _beside(run, folder, links).differences
    except RecordError as error:
        return error.what
    return differences[0] if differences else ""


def refuse_unsealed(run: RunRecord, folder: Path) -> None:
    """RecordError for a record that nobody vouches for: nothing that lasts is made of it."""
    if why := unsealed(run, folder):
        raise RecordError(
            f"NOT VERIFIED: {why}",
            where=str(folder),
            expected="a run whose figures follow from its samples, with its chain",
            fix=f"scaleproof verify {folder}",
        )


def _all(run: RunRecord, folder: Path, launches: Sequence[LaunchRecord]) -> list[_Launch]:
    """Every launch again; of many on all cores, in processes that are forked with the record."""
    if len(launches) < MANY:
        curves = references.Curves(run, folder)
        return [_launch(run, folder, launch, curves) for launch in launches]
    _GIVEN[:] = [run, folder, launches, references.Curves(run, folder)]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(mp_context=fork) as pool:
        return list(pool.map(_given, range(len(launches)), chunksize=64))


#: Checks whose limit is the least they may be, in records that do not say so.
AT_LEAST = ("progress", "codec.bytes_suffice", "codec.descends")
#: What forked processes find: record, folder, launches and curves.
_GIVEN: list[Any] = []


def _given(number: int) -> _Launch:
    run, folder, launches, curves = _GIVEN
    return _launch(run, folder, launches[number], curves)


def let_through(launch: str, ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Checks of a gate that were let through although their own figures miss their limits.

    The figures themselves are taken as recorded: what they were counted from is gone.
    """
    for rank in ranks:
        for check in rank.checks:
            if (
                not check.ok
                or check.value is None
                or check.limit is None
                or math.isnan(check.limit)
            ):
                continue
            least = -math.inf
            most = check.limit
            if check.at_least or check.name in AT_LEAST:
                least = check.limit
                most = math.inf
            elif check.name.startswith("bytes."):
                slack = SENT_SLACK * len(ranks) + headers(rank.issued, len(ranks))
                least = 0.99 * check.limit - 64
                most = 1.05 * check.limit + slack
            if not least <= check.value <= most:
                yield (
                    f"{launch}: {check.name} of rank {rank.rank} is {check.value:.4g} against"
                    f" {check.limit:.4g}, recorded as right"
                )


def _bits(launch: LaunchRecord, folder: Path) -> Iterator[str]:
    """Whether the hashes say again who was wrong."""
    if launch.status is not LaunchStatus.OK:
        return
    try:
        samples = [load_samples(folder, launch.launch, rank) for rank in launch.ranks]
    except RecordError as error:
        yield str(error)
        return
    compared = bits.compare(samples)
    again = bits.sentences(compared, launch.ranks)
    if (len(again), compared.num) != (len(launch.wrong), launch.compared):
        yield f"{launch.launch}: {len(launch.wrong)} ranks had other bits, recomputed {len(again)}"


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """One launch, recomputed."""

    num_samples: int = 0
    differences: tuple[str, ...] = ()
    traceless: bool = False


def _launch(
    run: RunRecord, folder: Path, launch: LaunchRecord, curves: references.Curves
) -> _Launch:
    plan = run.plan_of[launch.plan]
    cut = run.window(plan, launch).cut
    case = plan.arm(launch.arm).case
    try:
        samples = [load_samples(folder, launch.launch, r) for r in launch.ranks]
        compared = launch.asked in references.COMPARED and not launch.behind
        curve = curves.of(launch.case) if compared else None
    except RecordError as error:
        return _Launch(differences=(str(error),))
    expected = run.described[launch.case].expected
    traceless = False
    slot = run.by_slot[launch.slot] if launch.slot else ()
    beside = [rank for other in slot if other is not launch for rank in other.ranks]
    target = figures.target(plan, run.described[launch.case])
    again = figures.figures(case, expected, launch.ranks, samples, cut, curve, beside, target)
    differences = list(_differing(run, launch, again, samples, cut))
    if launch.purpose is Purpose.PROFILE and launch.budget is not None:
        window = run.window(plan, launch)
        paths = [trace_path(folder, launch.launch, r.rank) for r in launch.ranks]
        traceless = not all(map(is_there, paths))
        if not traceless:
            differences += _budget(
                launch, folder, window.profiled, talks(case, expected), run.schema
            )
        if not same(
            tuple(figures.perturbation(samples, window)),
            (launch.perturbation, launch.perturbation_low),
        ):
            differences.append(f"{launch.launch}: perturbation differs")
    for rank, rank_samples in zip(launch.ranks, samples, strict=True):
        if not same(figures.window_s(rank_samples, cut), rank.window_s):
            differences.append(f"{launch.launch}: window of rank {rank.rank} differs")
    return _Launch(num_samples=len(samples), differences=tuple(differences), traceless=traceless)


def _differing(
    run: RunRecord,
    launch: LaunchRecord,
    again: figures.Figures,
    samples: Sequence[Samples],
    cut: int,
) -> Iterator[str]:
    """Figures of a launch that are not what its samples give."""
    for name, value in vars(again).items():
        recorded = getattr(launch, name)
        if name == "wrong":  # what the traces lacked does not follow from the samples
            recorded = tuple(w for w in recorded if not w.startswith("timeline: "))
            if len(recorded) == len(value):
                continue  # words may change
        if recorded is None and run.schema < JUDGED_SINCE:
            continue  # not measured yet in its day
        watched = any(rank.watched is not None for rank in launch.ranks)
        if name == "consumed" and run.schema < DIRECTED_SINCE and watched:
            value = _counted_then(samples, cut, value, recorded)
        if not same(to_doc(value), to_doc(recorded)):
            yield f"{launch.launch}: {name} is {recorded}, recomputed {value}"


def _counted_then(samples: Sequence[Samples], cut: int, today: int, recorded: int) -> int:
    """Samples of a script's window: rows of its warm-up told how many are alike, too."""
    then = sum(script.by_step(samples)[cut:])
    return then if then == recorded else today


def _verdicts(run: RunRecord, again: Sequence[Verdict]) -> list[str]:
    differences = []
    if len(again) != len(run.verdicts):
        differences.append(f"{len(run.verdicts)} verdicts recorded, {len(again)} recomputed")
    directed = run.schema >= DIRECTED_SINCE
    # Words may change from version to version; reason and figures may not.
    words = set() if _of_this_version(run) else {"detail", "doubt"}
    words |= set() if directed else {"more"}
    for old, new in zip(run.verdicts, again, strict=False):
        if not directed and old.reason is Reason.NOISY_HOST:
            continue  # by the rules of its day load left it open
        names = [field.name for field in dataclasses.fields(old) if field.name not in words]
        changes = [
            f"{name} is {a}, recomputed {b}"
            for name in names
            if not same(to_doc(a := getattr(old, name)), to_doc(b := getattr(new, name)))
        ]
        if bool(old.doubt) is not bool(new.doubt):
            changes.append(f"it is {'' if new.doubt else 'not '}in doubt, other than recorded")
        if changes:
            differences.append(f"{old.case} {old.contrast}: {'; '.join(changes)}")
    return differences


def same(a: Json, b: Json) -> bool:
    """Equal, floats within TOLERANCE."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12) or (
            math.isnan(a) and math.isnan(b)
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _budget(
    launch: LaunchRecord, folder: Path, steps: int, talking: bool, schema: int
) -> list[str]:
    """Whether the traces are those that were recorded, and say the same again."""
    for rank in launch.ranks:
        if _digest(trace_path(folder, launch.launch, rank.rank)) != rank.trace_sha256:
            return [f"{launch.launch}: the trace of rank {rank.rank} was changed since the run"]
    try:
        again = budget_of(folder, launch.launch, launch.ranks, steps, talking)
    except ScaleproofError as error:
        return [f"{launch.launch}: {error.what}"]
    if schema < ASIDE_SINCE and launch.budget is not None:  # waiting was attributed otherwise
        again = dataclasses.replace(again, blame=launch.budget.blame)
    return (
        [] if same(to_doc(again), to_doc(launch.budget)) else [f"{launch.launch}: budget differs"]
    )


def _digest(path: Path) -> str:
    """A file's sha256; none of one that cannot be read."""
    try:
        with opened(path) as trace:
            return hashlib.sha256(trace.read()).hexdigest()
    except (OSError, zipfile.BadZipFile):
        return ""


def _windows(run: RunRecord, folder: Path) -> list[str]:
    """Whether steps and cuts are those that the pilots ask for, and were kept to."""
    differences = []
    known = dict[str, calibration.Pilot]()
    if run.complete and run.windows:
        sd = calibration.launch_sd(calibration.read(run, folder, known=known))
        if not same(sd, run.launch_sd):
            differences.append(f"launch_sd is {run.launch_sd}, the pilots give {sd}")
    for plan in run.plans:
        frozen = run.windows.get(plan.hash)
        settled = run.schema >= SETTLED_SINCE
        windows = calibration.read(run, folder, plan, known)
        if settled and frozen and frozen != calibration.windows(plan, windows, run.described):
            differences.append(f"{plan.name}: windows are {frozen}, the pilots give others")
        for launch in contrast_data.timed(run, plan, None):
            kept = run.window(plan, launch)
            if launch.steps is not None and launch.steps.count != kept.steps - kept.cut:
                differences.append(f"{launch.launch}: {launch.steps.count} steps kept, not {kept}")
    return differences


def rejudge(run: RunRecord, thresholds: Sequence[Threshold]) -> RunRecord:
    """The record with verdicts of other rules on the same measurements, by today's judge."""
    other = dataclasses.replace(run, thresholds=tuple(thresholds), schema=SCHEMA)
    return dataclasses.replace(other, verdicts=verdicts.verdicts(other))
