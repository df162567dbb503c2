"""Verify a run: recompute its record from its samples, offline and without torch."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import multiprocessing
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.analysis.audit import audit, strays
from harness.analysis.judging import contrast_data, verdicts
from harness.analysis.samples import bits, calibration, figures, references
from harness.analysis.script import counting
from harness.analysis.script.facts import LoopEvents, facts
from harness.analysis.timeline.close import budget_of, talks, trace_path
from harness.base import files, host_errors
from harness.base.documents import Json, to_doc
from harness.base.errors import RecordError, ScaleproofError
from harness.base.packs import is_there, opened
from harness.cases import Plan, Threshold
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

Result = TypeVar("Result")
#: Relative tolerance of recomputed numbers, because sums differ between CPUs and numpy versions.
TOLERANCE = 1e-9
#: Purposes of launches that have no samples of steps.
_APART = (Purpose.GATE, Purpose.REFERENCE, Purpose.BITS)
#: With this many launches or more, it is faster to recompute them in several processes.
MANY = 1_000
#: Bytes per rank by which the sent bytes may exceed the closed form, because of the protocol of
#: small messages.
SENT_SLACK = 20_000


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a verification: what was recomputed, and every difference that was found.

    Verdicts of an older schema were judged by older rules and are not recomputed. ``num_links`` is
    the length of the hash chain, and ``head`` is its last hash. Without a chain, launches could
    have been removed from the record although all figures follow from the samples. ``signer`` is
    the key of the signature. ``num_traceless`` is the number of profiled launches whose traces are
    missing, so their time budgets could not be recomputed. ``worded`` says that this version of the
    package wrote the verdicts. The sentences of verdicts are compared only in this case.
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
    """Recompute launches from samples and verdicts from launches, and list every difference.

    If the record is so inconsistent that the computation raises an exception, this is reported as a
    difference.
    """
    return _beside(run, folder, chain.read(folder))


def _beside(run: RunRecord, folder: Path, links: Sequence[chain.Link]) -> Verification:
    """Verify a record with its chain."""
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
    """Return a sentence about a record whose verification raised an exception."""
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
        pilots = {launch.name: launch.pilot for launch in checked if launch.pilot is not None}
        differences = _windows(run, folder, pilots)
    differences += audit(run, folder, links)
    # The chain of a record also contains its schema, which selects the rules of its verdicts.
    judged_today = run.schema >= JUDGED_SINCE or bool(links)
    again = _judged(run, run.plans) if judged_today else ()
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
    """Return whether every launch was made by the same files of this package as installed now."""
    made_by = {
        rank.sources.get("scaleproof")
        for launch in run.launches
        for rank in launch.ranks
        if rank.sources
    }
    return made_by == {files.digest_of_package()}


def passed_by_older_rules(run: RunRecord) -> Iterator[str]:
    """Yield a sentence for every PASS that is no PASS by today's rules.

    The schema of a record selects the rules of its verdicts, and a forger could write an older
    schema. A PASS must therefore also follow from today's rules.
    """
    passed = {verdict.plan for verdict in run.verdicts if verdict.status is Status.PASS}
    if not passed:
        return
    run_of_today = dataclasses.replace(run, schema=SCHEMA)
    plans = [plan for plan in run.plans if plan.hash in passed]
    today = {
        (verdict.plan, verdict.contrast, verdict.rule): verdict
        for verdict in _judged(run_of_today, plans)
    }
    for verdict in run.verdicts:
        now = today.get((verdict.plan, verdict.contrast, verdict.rule))
        if verdict.status is Status.PASS and (now is None or now.status is not Status.PASS):
            says = "nothing" if now is None else f"{now.status}: {now.detail}"
            by = f"a PASS by the rules of schema {run.schema} alone"
            yield f"{verdict.contrast}: {by}, today's rules give {says}"


def _judged(run: RunRecord, plans: Sequence[Plan]) -> list[Verdict]:
    """Return the verdicts of a record on series and on these plans, in the order of verdicts()."""
    by_plan = _mapped(lambda i: verdicts.of_plan(run, plans[i]), len(plans), len(run.launches))
    return [*verdicts.of_series(run), *itertools.chain.from_iterable(by_plan)]


def _counted(run: RunRecord) -> list[LaunchRecord]:
    """Return every launch that has samples of steps."""
    return [
        launch
        for launch in run.launches
        if launch.purpose not in _APART and launch.status is LaunchStatus.OK
    ]


def misfigured(run: RunRecord, folder: Path) -> str:
    """Return a sentence on the first figure of a run that its samples contradict.

    Return an empty string if there is none. The run may be unfinished. Launches whose samples are
    missing are skipped.
    """
    there = [x for x in _counted(run) if (folder / "launches" / x.launch).is_dir()]
    try:
        replayed = _all(run, folder, there)
        return next((text for launch in replayed for text in launch.differences), "")
    except RecordError as error:
        return error.what


def unsealed(run: RunRecord, folder: Path, links: Sequence[chain.Link] | None = None) -> str:
    """Return why a record is not verified, or an empty string if it is.

    A record is verified if it has a chain, its figures follow from its samples, and its verdicts
    follow from its figures. ``links`` are the links of the chain if they were read already.
    """
    try:
        links = chain.read(folder) if links is None else links
    except RecordError as error:
        return error.what
    if not links:
        reason = "it has no chain, so launches could have been left out"
        return "" if _stopped_at_once(run) else reason
    try:
        differences = _beside(run, folder, links).differences
    except RecordError as error:
        return error.what
    return differences[0] if differences else ""


def _stopped_at_once(run: RunRecord) -> bool:
    """Return whether a run ended before anything was measured, and claims nothing."""
    measured = run.launches or run.fabric or run.recoveries or run.played or run.suspects
    claimed = any(v.status is not Status.INCONCLUSIVE or v.value is not None for v in run.verdicts)
    return not (run.complete or measured or claimed)


def refuse_unsealed(run: RunRecord, folder: Path) -> None:
    """Raise RecordError if a record is not verified.

    Callers use this function before they store data that are derived from the record.
    """
    if why := unsealed(run, folder):
        raise RecordError(
            f"NOT VERIFIED: {why}",
            where=str(folder),
            expected="a run with its hash chain, whose figures follow from its samples",
            fix=f"scaleproof verify {folder}",
        )


def _all(run: RunRecord, folder: Path, launches: Sequence[LaunchRecord]) -> list[_Launch]:
    """Recompute every launch."""
    curves = references.Curves(run, folder)
    number = len(launches)
    return _mapped(lambda i: _launch(run, folder, launches[i], curves), number, number)


def _mapped(work: Callable[[int], Result], number: int, launches: int) -> list[Result]:
    """Return the results of ``work`` for 0 to ``number`` - 1.

    A record with many launches uses all cores with forked processes, which inherit ``work`` and
    the record.
    """
    if launches < MANY or number < 2:
        return [work(i) for i in range(number)]
    first = work(0)  # imports modules and fills caches, which forked processes inherit
    _WORK[:] = [work]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(mp_context=fork) as pool:
        pieces = pool.map(_worked, range(1, number), chunksize=max(1, min(64, number // 16)))
        return [first, *pieces]


def _worked(number: int) -> Any:
    (work,) = _WORK
    return work(number)


#: The function that forked processes inherit and call.
_WORK: list[Callable[[int], Any]] = []
#: Checks whose limit is a lower limit; older records do not state this.
AT_LEAST = ("progress", "codec.bytes_suffice", "codec.descends")


def let_through(launch: str, ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Yield the correctness checks that passed although their recorded values miss their limits.

    The values themselves cannot be recomputed, because the data for this are not stored.
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
            elif ".bytes." in f".{check.name}":  # a gate with two optimizers names the second one
                slack = SENT_SLACK * len(ranks) + headers(rank.issued, len(ranks))
                least = 0.99 * check.limit - 64
                most = 1.05 * check.limit + slack
            if not least <= check.value <= most:
                yield (
                    f"{launch}: {check.name} of rank {rank.rank} is {check.value:.4g}, limit"
                    f" {check.limit:.4g}, but recorded as passed"
                )


def _bits(launch: LaunchRecord, folder: Path) -> Iterator[str]:
    """Yield a sentence if the number of ranks with wrong bits differs from the recorded one.

    The number is recomputed from the hashes of the ranks.
    """
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
        yield f"{launch.launch}: {len(launch.wrong)} ranks had wrong bits, recomputed {len(again)}"


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """The result of recomputing one launch, and what its samples say if it is a pilot."""

    num_samples: int = 0
    differences: tuple[str, ...] = ()
    traceless: bool = False
    name: str = ""
    pilot: calibration.Pilot | None = None


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
    slot = run.by_slot[launch.slot] if launch.slot else ()
    beside = [rank for other in slot if other is not launch for rank in other.ranks]
    target = figures.target(plan, run.described[launch.case])
    again = figures.figures(case, expected, launch.ranks, samples, cut, curve, beside, target)
    differences = list(_differing(run, launch, again, samples, cut))
    traceless = False
    if launch.purpose is Purpose.PROFILE and launch.budget is not None:
        paths = [trace_path(folder, launch.launch, r.rank) for r in launch.ranks]
        traceless = not all(map(is_there, paths))
        differences += _profiled(run, launch, folder, samples, traceless=traceless)
    for rank, rank_samples in zip(launch.ranks, samples, strict=True):
        differences += _of_samples(launch, rank, rank_samples, cut)
    pilot = None
    if calibration.is_pilot(launch):
        pilot = calibration.pilot(launch, run.window(plan, launch), samples)
    return _Launch(
        num_samples=len(samples),
        differences=tuple(differences),
        traceless=traceless,
        name=launch.launch,
        pilot=pilot,
    )


def _profiled(
    run: RunRecord,
    launch: LaunchRecord,
    folder: Path,
    samples: Sequence[Samples],
    *,
    traceless: bool,
) -> Iterator[str]:
    """Yield the differences of a profiled launch: in its time budget and in its slowdown."""
    plan = run.plan_of[launch.plan]
    window = run.window(plan, launch)
    if not traceless:
        exchanges = talks(plan.arm(launch.arm).case, run.described[launch.case].expected)
        yield from _budget(launch, folder, window.profiled, exchanges, run.schema)
    recorded = (launch.perturbation, launch.perturbation_low)
    if not same(tuple(figures.perturbation(samples, window)), recorded):
        yield f"{launch.launch}: the slowdown by the profiler differs from the record"


def _of_samples(
    launch: LaunchRecord, rank: RankRecord, samples: Samples, cut: int
) -> Iterator[str]:
    """Yield the values of a rank that do not follow from its samples."""
    recomputed = [
        (rank, _of_rank(samples, cut)),
        (rank.watched, _of_loop(rank, samples, cut)),
    ]
    for recorded, values in recomputed:
        for name, value in values.items():
            if not same(to_doc(value), to_doc(getattr(recorded, name))):
                yield f"{launch.launch}: {name} of rank {rank.rank} differs from its samples"


def _of_loop(rank: RankRecord, samples: Samples, cut: int) -> Mapping[str, Any]:
    """Return the observations of a user's training that follow from the events in its samples."""
    watched = rank.watched
    if watched is None or samples.cycles is None:
        return {}
    loop = LoopEvents(samples=samples, cut=cut, operations=watched.operations)
    sharded = watched.sharded and not watched.cut
    return facts(loop, parallel=watched.parallel, sharded=sharded)


def _of_rank(samples: Samples, cut: int) -> Mapping[str, float | None]:
    """Return the fields of a rank's record that follow from its samples."""
    losses = [loss for loss in samples.loss.tolist() if not math.isnan(loss)]
    return {
        "window_s": figures.window_s(samples, cut),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "stepping_s": float(samples.marks_s[-1]),
    }


def _differing(
    run: RunRecord,
    launch: LaunchRecord,
    again: figures.Figures,
    samples: Sequence[Samples],
    cut: int,
) -> Iterator[str]:
    """Yield a sentence for each figure of a launch that differs from the recomputed figure."""
    for name, value in vars(again).items():
        recorded = getattr(launch, name)
        if name == "wrong":  # Messages on the trace do not follow from the samples.
            recorded = tuple(w for w in recorded if not w.startswith("timeline: "))
            if len(recorded) == len(value):
                continue  # The wording may change between versions.
        if name == "accepted":  # The names and figures are compared, for the same reason.
            recorded = stated(recorded)
            value = stated(value)
        if recorded is None and run.schema < JUDGED_SINCE:
            continue  # The version that wrote the record did not measure this figure.
        watched = any(rank.watched is not None for rank in launch.ranks)
        if name == "consumed" and run.schema < DIRECTED_SINCE and watched:
            value = _counted_then(samples, cut, value, recorded)
        if not same(to_doc(value), to_doc(recorded)):
            yield f"{launch.launch}: {name} is {recorded}, recomputed {value}"


def stated(sentences: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the name of the check and the numbers in each sentence, which no rewording changes."""
    return [(text.partition(":")[0], re.findall(r"\d+(?:\.\d+)?", text)) for text in sentences]


def _counted_then(samples: Sequence[Samples], cut: int, today: int, recorded: int) -> int:
    """Return the number of samples in a script's timed steps by an older rule or by today's rule.

    The older rule also used warm-up steps to estimate the share of distinct rows. If its result is
    the recorded number, return this number, else ``today``.
    """
    then = sum(counting.by_step(samples)[cut:])
    return then if then == recorded else today


def _verdicts(run: RunRecord, again: Sequence[Verdict]) -> list[str]:
    differences = []
    if len(again) != len(run.verdicts):
        differences.append(f"{len(run.verdicts)} verdicts recorded, {len(again)} recomputed")
    directed = run.schema >= DIRECTED_SINCE
    # The wording may change between versions; reasons and figures may not.
    words = set() if _of_this_version(run) else {"detail", "doubt"}
    words |= set() if directed else {"more"}
    for old, new in zip(run.verdicts, again, strict=False):
        if not directed and old.reason is Reason.NOISY_HOST:
            continue  # By the rules of that schema, background load left the verdict open.
        names = [field.name for field in dataclasses.fields(old) if field.name not in words]
        changes = [
            f"{name} is {a}, recomputed {b}"
            for name in names
            if not same(to_doc(a := getattr(old, name)), to_doc(b := getattr(new, name)))
        ]
        if bool(old.doubt) is not bool(new.doubt):
            changes.append(
                f"it has {'a' if new.doubt else 'no'} caveat, unlike the recorded verdict"
            )
        if changes:
            differences.append(f"{old.case} {old.contrast}: {'; '.join(changes)}")
    return differences


def same(a: Json, b: Json) -> bool:
    """Return whether two values are equal; floats may have a relative difference of TOLERANCE."""
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
    """Return a sentence if a trace was changed, or if the traces result in a different budget."""
    for rank in launch.ranks:
        if _digest(trace_path(folder, launch.launch, rank.rank)) != rank.trace_sha256:
            return [f"{launch.launch}: the trace of rank {rank.rank} was changed after the run"]
    try:
        again = budget_of(folder, launch.launch, launch.ranks, steps, talking)
    except ScaleproofError as error:
        return [f"{launch.launch}: {error.what}"]
    if (
        schema < ASIDE_SINCE and launch.budget is not None
    ):  # Old schemas attributed waiting differently.
        again = dataclasses.replace(again, blame=launch.budget.blame)
    recorded = launch.budget and dataclasses.replace(launch.budget)  # with fields of this version
    if recorded is not None and recorded.wait_ns is None:
        again = dataclasses.replace(again, wait_ns=None)
    return (
        []
        if same(to_doc(again), to_doc(recorded))
        else [f"{launch.launch}: time budget differs from the record"]
    )


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or an empty string if it cannot be read."""
    try:
        with opened(path) as trace:
            return hashlib.sha256(trace.read()).hexdigest()
    except (OSError, zipfile.BadZipFile):
        return ""


def _windows(run: RunRecord, folder: Path, known: dict[str, calibration.Pilot]) -> list[str]:
    """Return differences if numbers of steps do not follow from the calibration launches.

    ``known`` has the pilots that were read before, by launch.
    """
    differences = []
    if run.complete and run.windows:
        sd = calibration.launch_sd(calibration.read(run, folder, known=known))
        if not same(sd, run.launch_sd):
            differences.append(f"launch_sd is {run.launch_sd}, the calibration launches give {sd}")
    for plan in run.plans:
        frozen = run.windows.get(plan.hash)
        settled = run.schema >= SETTLED_SINCE
        windows = calibration.read(run, folder, plan, known)
        if settled and frozen and frozen != calibration.windows(plan, windows, run.described):
            differences.append(
                f"{plan.name}: windows are {frozen}, but other windows follow from the pilots"
            )
        for launch in contrast_data.timed(run, plan, None):
            kept = run.window(plan, launch)
            if launch.steps is not None and launch.steps.count != kept.steps - kept.cut:
                differences.append(
                    f"{launch.launch}: {launch.steps.count} steps are recorded, expected {kept}"
                )
    return differences


def rejudge(run: RunRecord, thresholds: Sequence[Threshold]) -> RunRecord:
    """Return the record with verdicts on these thresholds, from the same measurements."""
    other = dataclasses.replace(run, thresholds=tuple(thresholds), schema=SCHEMA)
    return dataclasses.replace(other, verdicts=verdicts.verdicts(other))
