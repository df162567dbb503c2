"""The table of a user's own script: what a step is, what it takes, and what could be checked."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from markupsafe import Markup

from harness.analysis.judging.pairs import timed
from harness.analysis.judging.work import MOST_TIMES
from harness.analysis.samples import same_training, script
from harness.base.numbers import si
from harness.cases import Arm, Device, Mode
from harness.interface.report import text
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record import LaunchRecord, Purpose, RunRecord, Watched


@dataclass(frozen=True)
class ScriptRow:
    """One rung: its arm and its usable launches."""

    arm: Arm
    launches: Sequence[LaunchRecord]

    @property
    def seen(self) -> Watched:
        watched = self.launches[0].ranks[0].watched
        assert watched is not None
        return watched

    @property
    def samples(self) -> float:
        return median(
            launch.consumed / launch.steps.count for launch in self.launches if launch.steps
        )


@dataclass(frozen=True)
class ScriptSection:
    """A script on a page: its name, its table, what was checked and noticed."""

    name: str
    table: Markup
    notes: Sequence[str]


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """A table for each script; nothing where none was run."""
    shown: list[str] = []
    for rows in _scripts(run):
        name = wrap(f" {text.named(rows[0].arm.case)}", width, 3)
        table = Table(columns=_COLUMNS, rows=rows)
        shown += [
            *name,
            *table.lines(width),
            *wrap(f" {_note(rows)}", width, 1),
            *(
                line
                for label, what in _checks(rows)
                for line in wrap(f" {label:12}{what}", width, 13)
            ),
            "",
        ]
    return [rule("your script", width), *shown] if shown else []


def sections(run: RunRecord) -> list[ScriptSection]:
    """The sections for a page."""
    return [
        ScriptSection(
            name=rows[0].arm.case.family + rows[0].arm.case.extras,
            table=Table(columns=_COLUMNS, rows=rows).html("your script"),
            notes=[_note(rows), *(f"{label}: {what}" for label, what in _checks(rows))],
        )
        for rows in _scripts(run)
    ]


def _scripts(run: RunRecord) -> Iterator[list[ScriptRow]]:
    """The rungs of each script that was run; what the pilots saw where no more was measured."""
    for plan in run.plans:
        launches = [x for x in timed(run, plan, None) if x.usable and x.ranks]
        if not launches:
            pilots = timed(run, plan, None, Purpose.PILOT)
            launches = [pilot for pilot in pilots if pilot.usable and pilot.ranks]
        arms = [arm for arm in plan.arms if arm.case.script]
        of_arms = [
            ScriptRow(arm, [launch for launch in launches if launch.arm == arm.name])
            for arm in arms
        ]
        if rows := [row for row in of_arms if row.launches]:
            yield rows


def _step(row: ScriptRow) -> str:
    """The slowest rank's window over its steps, as throughput has it."""
    means = [
        max(rank.window_s for rank in launch.ranks) / launch.steps.count
        for launch in row.launches
        if launch.steps
    ]
    return si(fmean(means), "s")


def _exchanged(row: ScriptRow) -> str:
    """The kind of collective that carries most gradients, else most bytes, and how many others
    there are.
    """
    kinds = sorted(
        row.seen.collectives.items(),
        key=lambda kind: (
            kind[0] not in GRADIENTS or kind[1].payload_bytes < script.SMALL,
            -kind[1].payload_bytes,
        ),
    )
    shown = [
        f"{key} {si(float(issued.payload_bytes), 'B')}"
        + (f" in {issued.count}" if issued.count > 1 else "")
        for key, issued in kinds
    ]
    more = [f"{len(shown) - 1} other kind{'s' * (len(shown) > 2)}"] if len(shown) > 1 else []
    return ", ".join([*shown[:1], *more])


_COLUMNS: Sequence[Column[ScriptRow]] = (
    Column[ScriptRow]("ranks", 9, lambda r: r.arm.case.world),
    Column("samples/step", 8, lambda r: f"{r.samples:.4g}"),
    Column("step", 9, _step),
    Column("updates of a step", 7, lambda r: ", ".join(r.seen.optimizers), left=True),
    Column("exchanged in a step", 6, _exchanged, left=True),
)
#: The collectives that carry gradients, where any does.
GRADIENTS = ("all_reduce", "reduce_scatter")
#: Of the samples of a step, this share is of the step before.
AGAIN = 0.4
NOTE = "step = the window over its steps: evaluations and logs in it are included"
PILOTS = "by pilots, a start or two of each: nothing is compared"


def _note(rows: Sequence[ScriptRow]) -> str:
    """Explains a figure of the table."""
    launches = [launch for row in rows for launch in row.launches]
    only_pilots = all(launch.purpose is Purpose.PILOT for launch in launches)
    return f"{NOTE}; {PILOTS}" if only_pilots else NOTE


def _checks(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str]]:
    """Lists the checks that held on every launch, those that could not be made and why, and what is
    worth a look: each with its label.
    """
    checked = []
    missing = []
    for what, why_not in (*_of_all(rows), *_of_several(rows)):
        if why_not is None:
            checked.append(what)
        else:
            missing.append(f"{what} ({why_not})" if why_not else what)
    yield "checked", ", ".join(checked)
    if missing:
        yield "not checked", ", ".join(missing)
    by_remark: dict[str, list[str]] = {}
    for row in rows:
        for remark in _remarks(row, rows[0].launches):
            by_remark.setdefault(remark, []).append(row.arm.case.world)
    for remark, worlds in by_remark.items():
        yield "noticed", f"{', '.join(worlds)}: {remark}"


def _of_all(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str | None]]:
    """(Check, why it could not be made: None if it held) of every script."""
    yield "one world", None
    yield "steps of one period", None
    counted = all(_by_content(row) for row in rows)
    yield ("samples by content", None) if counted else ("samples", "as declared")
    if any(row.seen.way == "library" for row in rows):
        yield "scaling", "one world of one start: there is nothing to compare with"
        return
    every = [launch for row in rows for launch in row.launches]
    sharded = any(row.seen.sharded for row in rows)  # then each world has other parts
    alike = [row.launches for row in rows] if sharded else [every]
    if all(map(same_training.begin_alike, alike)):
        yield "one start in all launches", None
    else:
        seen = "each was launched once" if len(every) == len(rows) else "no seed was seen"
        yield "one start", f"{seen}: launches are compared by speed"
    if any(row.seen.backwards > 1 and not row.seen.cleared for row in rows):
        yield "that the loss is divided by the number of accumulated passes", ""


def _by_content(row: ScriptRow) -> bool:
    """Whether samples were counted by what reached the model, not by what the user says."""
    watched = [rank.watched for rank in row.launches[0].ranks if rank.watched is not None]
    came = [float(sum(w.roots.values())) for w in watched]
    alike = any(rows > 1 >= w.distinct * rows for w, rows in zip(watched, came, strict=True))
    return not alike and not script.uncounted(watched, came)


def _of_several(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str | None]]:
    """The remarks on rungs with several ranks."""
    several = [row for row in rows if row.arm.case.world_size > 1]
    if not several:
        yield "all of more ranks", ""
        return
    yield from _replicas([row.seen for row in several])
    if not same_training.works_known([launch for row in rows for launch in row.launches]):
        sizes = "inputs differ in size" if any(row.seen.ragged for row in rows) else ""
        yield "whether a sample takes as much work in every world", sizes
    for row in several:
        late = _late_in_most(row, quiet=True) or _late_in_most(row, bursts=True, quiet=True)
        if late and not _late(row):
            longer = f"it takes {si(late.more_s, 's')} a step longer; others used the cores, too"
            yield f"whether rank {late.rank} of {row.arm.case.world} is slow itself", longer
    first = rows[0]
    lowest = "one rank" if first.arm.case.world_size == 1 else first.arm.case.world
    for row in several:
        if row is first:
            continue
        if same_training.gradients_differ(row.launches[0], first.launches[0]):
            continue  # the verdict says so
        reason = _gradient_uncompared(row, first)
        compared = f"equal to {lowest}'s" if reason is None else f"against {lowest}'s"
        yield f"gradient of {row.arm.case.world} {compared}", reason


def _replicas(watched: Sequence[Watched]) -> Iterator[tuple[str, str | None]]:
    """Whether ranks stay alike, and exchange no more than they need."""
    if any(w.sharded for w in watched):
        yield "replicas", "parameters are sharded"
        if all(w.parallel for w in watched) and not any(list(script.shards(w)) for w in watched):
            yield "shards exchanged as often as needed", None
        return
    yield "replicas equal at both ends", None
    if any(w.evaluations or w.aside for w in watched):
        yield "models beside the trained one, if any (a teacher, an average of weights)", ""
    if not any(map(script.accumulated, watched)):
        reason = None if all(w.collectives for w in watched) else "torch's flight recorder was off"
        if any(w.cleared for w in watched):
            reason = "each of a step's passes has its own"
        elif any(map(script.may_hide_another, watched)):
            reason = "forward passes all-reduce statistics that are as large"
        yield "gradients exchanged once", reason


def _gradient_uncompared(row: ScriptRow, first: ScriptRow) -> str | None:
    """Why the first gradient was not compared with that of the lowest rung; None if it was."""
    pair = row.launches[0], first.launches[0]
    if not same_training.begin_alike(pair):
        return "no seed was seen"
    if same_training.random(pair):
        return "forward passes draw random numbers"
    if same_training.cut(pair):
        return "ranks hold parts of the model"
    if same_training.same_samples(*pair):
        return None
    return "weak: other samples" if row.arm.case.mode is Mode.WEAK else "the first samples differ"


@dataclass(frozen=True)
class WaitedFor:
    """A rank that the others wait for, and for how long in a step (s)."""

    rank: int
    more_s: float


def _late(row: ScriptRow) -> str:
    """A remark on the rank that the others wait for."""
    if late := _late_in_most(row):
        return (
            f"rank {late.rank} comes to its backward pass {si(late.more_s, 's')} a step later than"
            " the others, which wait for it: a slow loader, device or core?"
        )
    if late := _late_in_most(row, bursts=True):
        return (
            f"rank {late.rank} takes {si(late.more_s, 's')} a step longer than the others, most of"
            " it in a few steps, and they wait for it: an evaluation, a checkpoint or a log of its"
            " own?"
        )
    return ""


def _late_in_most(row: ScriptRow, *, bursts: bool = False, quiet: bool = False) -> WaitedFor | None:
    """The rank that is late in more than half of the launches, and how long in the middle.

    ``bursts``: by mean steps, not by median ones; ``quiet``: as if the machine had been its alone.
    """
    late = [_late_in(launch, bursts=bursts, quiet=quiet) for launch in row.launches]
    ((rank, times),) = Counter(x.rank if x is not None else None for x in late).most_common(1)
    if rank is None or 2 * times <= len(late):
        return None
    return WaitedFor(rank, median(x.more_s for x in late if x is not None and x.rank == rank))


def _late_in(launch: LaunchRecord, *, bursts: bool, quiet: bool) -> WaitedFor | None:
    """The rank that is late in a launch."""
    if launch.steps is None:
        return None
    step_s = launch.steps.mean_s
    watched = [rank.watched for rank in launch.ranks if rank.watched is not None]
    ahead_s = [w.ahead_s + w.bursts_s * bursts for w in watched]
    if quiet:
        late = script.late(ahead_s, [0.0] * len(watched), step_s)
    else:
        queued_s = [step_s * (rank.waited_s or 0.0) / rank.window_s for rank in launch.ranks]
        late = script.late(ahead_s, queued_s, step_s, launch.foreign_load or 0.0)
    return None if late is None else WaitedFor(*late)


def _cpu_of_sample(launches: Sequence[LaunchRecord]) -> float:
    """CPU seconds of the busiest rank for a sample of its own, in the launch that took least."""
    of_launches = [
        max(rank.cpu_s for rank in launch.ranks) * len(launch.ranks) / launch.consumed
        for launch in launches
        if launch.consumed
    ]
    return min(of_launches, default=0.0)


def _remarks(row: ScriptRow, bases: Sequence[LaunchRecord]) -> Iterator[str]:
    """Remarks on a rung, beside launches of the lowest one."""
    base = bases[0]
    base_ranks = "one rank" if len(base.ranks) == 1 else f"{len(base.ranks)} ranks"
    yield from _of_exchanges(row.seen, row.arm.case.world_size)
    yield from _of_batches(row, base, base_ranks)
    yield from _of_work(row, bases, base_ranks)


def _of_exchanges(watched: Watched, world_size: int) -> Iterator[str]:
    if watched.small and world_size > 1:
        several = "s" if watched.small > 1 else ""
        yield (
            f"{watched.small} collective{several} of single values in the last step: a loss that is"
            " logged, or a norm? Each makes all ranks wait for each other"
        )
    if watched.reads >= 1:
        yield (
            f"a step reads {watched.reads:.3g} single value{'s' if watched.reads > 1 else ''}"
            " (.item()): on a GPU each waits for"
            " the device"
        )
    if world_size > 1 and (extra := script.accumulated(watched)):
        yield extra
    if lost := script.lost(watched):
        yield lost
    if watched.sharded and world_size > 1:
        yield from script.shards(watched)
    if not watched.even and not watched.cleared and not watched.unusual:
        yield (
            "steps do not exchange equally many bytes: is a step of the training more than one"
            " update?"
        )


def _of_batches(row: ScriptRow, base: LaunchRecord, base_ranks: str) -> Iterator[str]:
    watched = row.seen
    (first, *_) = (rank.watched for rank in base.ranks if rank.watched is not None)
    if watched.workers != first.workers:
        yield (
            f"the loader has {watched.workers} workers a rank, and {first.workers} on"
            f" {base_ranks}: the ratio is of both, of ranks and of workers"
        )
    whole = watched.drawn == 1  # its data set makes batches
    parts = 1 if whole or row.arm.case.samples_per_step else script.parts_of_one(watched)
    if parts > 1:
        yield (
            f"a sample that the loader hands out is {parts} rows of what the model gets (a pair, or"
            f" views?), and these are counted: --samples-per-step {_handed(row)} counts the samples"
        )
    if watched.unusual:
        yield (
            f"{watched.unusual} step{'s' if watched.unusual > 1 else ''} of the window had another"
            " number of backward passes than most: the last of an epoch, or an update that was left"
            " out? Their samples are counted"
        )
    elif watched.skips:
        yield (
            "some steps have more forward passes than others, and as many backward passes: is a"
            " batch left out behind its forward pass? Its samples are counted, too"
        )
    if watched.uncleared:
        yield "gradients are there still as the next update begins: is zero_grad() missing?"
    if watched.twice:
        yield "an optimizer steps twice with one gradient: is optimizer.step() called twice?"
    if watched.unstepped:
        names = ", ".join(watched.unstepped)
        yield f"parameters of {names} get gradients, and no optimizer has them"
    if parts_differ := script.unlike_parts(row.launches[0].ranks):
        yield parts_differ
    if shared := script.saved_by_several(row.launches[0].ranks):
        yield shared
    once = not watched.drawn or sum(watched.roots.values()) <= watched.drawn
    known = watched.again + (1 - watched.distinct if once else 0)
    if known >= AGAIN and watched.workers > 1:
        yield (
            f"{known:.0%} of a step's samples were those of another one, or of the step before: do"
            " all workers of the loader read the same ones (get_worker_info)?"
        )
    if not watched.stored and same_training.draws_whole(row.launches[0], base):
        yield (
            f"each rank draws from all {watched.whole:,} samples of a data set that stores none:"
            " right if each rank makes others, else a DistributedSampler is missing"
        )


def _handed(row: ScriptRow) -> str:
    """The loaders' samples as --samples-per-step has them: of a rank, in a strong ladder all."""
    of_rank = row.arm.case.mode is Mode.WEAK
    return f"{row.seen.drawn if of_rank else script.handed_out(row.launches[0].ranks):g}"


def _of_work(row: ScriptRow, bases: Sequence[LaunchRecord], base_ranks: str) -> Iterator[str]:
    case = row.arm.case
    watched = row.seen
    if watched.searched:
        yield (
            "find_unused_parameters=True searches the graph in every step, and every parameter"
            " had a gradient: is it needed?"
        )
    passes = [
        rank.watched.evaluations for rank in row.launches[0].ranks if rank.watched is not None
    ]
    if len(set(passes)) > 1:
        largest = passes.index(max(passes))
        yield (
            f"rank {largest} evaluates within the window ({max(passes)} forward passes), the"
            f" least busy one makes {min(passes)}: the others wait for it"
        )
    elif any(passes):
        yield f"the window has {passes[0]} forward passes that train nothing"
    shared = len(set(passes)) == 1 and row.launches is not bases
    if shared and same_training.less_beside(row.launches, bases):
        yield (
            f"a rank evaluates less within the window than on {base_ranks}, since all share it: the"
            " ratio is of training and evaluation together"
        )
    if late := _late(row):
        yield late
    grows = case.mode is Mode.WEAK and case.world_size > len(bases[0].ranks)
    if grows and case.device is Device.CPU and not watched.sharded:
        times = _cpu_of_sample(bases) / max(_cpu_of_sample(row.launches), 1e-12)
        if times > MOST_TIMES:
            yield (
                f"a sample takes {times:.2g} times the CPU time on {base_ranks}: does it do more"
                " there (files, checks, other options)?"
            )
