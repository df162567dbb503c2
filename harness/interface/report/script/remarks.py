"""List remarks on a script: observations worth a look that are not certainly mistakes.

Each remark is one function.
"""

from collections.abc import Callable, Iterator, Sequence

from harness.analysis.judging.biases import MOST_TIMES
from harness.analysis.samples import same_training, script
from harness.cases import Device, Mode
from harness.interface.report.script import steps
from harness.interface.report.script.late import late
from harness.interface.report.script.row import ScriptRow
from harness.record import LaunchRecord

#: Smallest share of a step's samples that repeat other samples for a remark.
AGAIN = 0.4
#: A rank evaluates if its passes that train nothing exceed another rank's by this factor.
MORE = 1.5
#: A remark on one world size, given the launches of the smallest one; empty if there is none.
Remark = Callable[[ScriptRow, Sequence[LaunchRecord]], str]


def remarks(rows: Sequence[ScriptRow]) -> Iterator[str]:
    """Yield the remarks on a script, each with the world sizes that it concerns.

    If a remark has other figures at several world sizes, those of the largest one are shown.
    """
    for remark in REMARKS:
        of_worlds = {row.arm.case.world: remark(row, rows[0].launches) for row in rows}
        made = {world: sentence for world, sentence in of_worlds.items() if sentence}
        if not made:
            continue
        shown = list(made.values())[-1]
        alike = ", ".join(world for world, sentence in made.items() if sentence == shown)
        others = ", ".join(world for world, sentence in made.items() if sentence != shown)
        yield f"{alike}{f' (similar: {others})' if others else ''}: {shown}"


def _of(bases: Sequence[LaunchRecord]) -> str:
    """Return the number of ranks of the smallest world size as text."""
    num_ranks = len(bases[0].ranks)
    return "one rank" if num_ranks == 1 else f"{num_ranks} ranks"


def _small_collectives(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    small = row.seen.small
    if not small or row.arm.case.world_size < 2:
        return ""
    return (
        f"{small} collective{'s' * (small > 1)} of a few values in the last step: a loss that is"
        " logged, or a norm? Each makes all ranks wait for each other"
    )


def _reads(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    reads = row.seen.reads
    if reads < 1:
        return ""
    return (
        f"a step reads {reads:.3g} single value{'s' * (reads > 1)} by .item(): if the tensor is"
        " on a GPU, each read waits for it"
    )


def _exchanged_in_each_pass(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return script.accumulated(row.seen) if row.arm.case.world_size > 1 else ""


def _lost(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return script.lost(row.seen)


def _shards(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    several = row.seen.sharded and row.arm.case.world_size > 1
    return "; ".join(script.shards(row.seen)) if several else ""


def _uneven(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    watched = row.seen
    if watched.even or watched.cleared or watched.unusual or watched.evaluations:
        return ""
    if watched.silent:
        return (
            f"ranks exchange nothing in {watched.silent} steps of the window: they train separately"
            " in these steps, and may differ when the window ends"
        )
    return (
        "steps do not exchange equally many bytes: is a step of the training more than one update,"
        " or do only a few steps exchange something (the first of an epoch)?"
    )


def _acted(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    watched = row.seen
    if not watched.acted or watched.evaluations:
        return ""
    return (
        f"{watched.acted} forward passes that train nothing came before the window, and none in it:"
        " if rollouts or evaluations come once in many updates, use a longer window (--steps)"
    )


def _workers(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    here = row.seen.workers
    there = next(r.watched.workers for r in bases[0].ranks if r.watched is not None)
    if here == there:
        return ""
    return (
        f"the loader has {here} workers a rank, and {there} on {_of(bases)}: the ratio depends on"
        " the number of workers, too"
    )


def _parts(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    makes_batches = row.seen.drawn == 1
    if makes_batches or row.arm.case.samples_per_step:
        return ""
    parts = script.parts_of_one(row.seen)
    if parts < 2:
        return ""
    # --samples-per-step counts the samples of one rank (weak scaling) or of all ranks (strong).
    weak = row.arm.case.mode is Mode.WEAK
    handed_out = row.seen.drawn if weak else script.handed_out(row.launches[0].ranks)
    return (
        f"the model gets {parts} rows for each sample of the loader (a pair, or views?), and rows"
        f" are counted: --samples-per-step {handed_out:g} counts samples instead"
    )


def _unusual(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    unusual = row.seen.unusual
    if not unusual:
        return ""
    return (
        f"{unusual} step{'s' * (unusual > 1)} of the window had another number of backward passes"
        " than most: the last step of an epoch, or an update that was skipped? Their samples"
        " are counted"
    )


def _skips(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.skips or row.seen.unusual:
        return ""
    return (
        "some steps have more forward passes than others, but the same number of backward passes:"
        " is a batch skipped after its forward pass? Its samples are counted as well"
    )


def _uncleared(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.uncleared:
        return ""
    return "gradients still exist when the next update begins: is zero_grad() missing?"


def _twice(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.twice:
        return ""
    return "an optimizer steps twice with one gradient: is optimizer.step() called twice?"


def _unstepped(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.unstepped:
        return ""
    return f"parameters of {', '.join(row.seen.unstepped)} get gradients, but no optimizer has them"


def _unlike_parts(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return script.unlike_parts(row.launches[0].ranks)


def _saved_by_several(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return script.saved_by_several(row.launches[0].ranks)


def _read_again(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    watched = row.seen
    once = not watched.drawn or sum(watched.roots.values()) <= watched.drawn
    known = watched.again + (1 - watched.distinct if once else 0)
    if known < AGAIN or watched.workers < 2:
        return ""
    return (
        f"{known:.0%} of a step's samples repeat other samples of this step or the previous one:"
        " do all workers of the loader read the same samples (get_worker_info)?"
    )


def _draws_whole(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    if row.seen.stored or not same_training.draws_whole(row.launches[0], bases[0]):
        return ""
    return (
        f"each rank draws from all {row.seen.whole:,} samples of a data set that stores none:"
        " correct if each rank generates other samples, else a DistributedSampler is missing"
    )


def _searched(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    # Each of several backward passes may reach only some of the parameters.
    several = row.seen.backwards > len(row.seen.optimizers)
    if not row.seen.searched or several:
        return ""
    return (
        "find_unused_parameters=True searches the graph in every step, but every parameter had a"
        " gradient: is it needed?"
    )


def _rounded(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    apart = script.by_rounding(row.of_ranks)
    if not apart or row.seen.sharded:
        return ""
    return (
        f"replicas differ by {apart:.1g} times the change of the parameters by training: ranks"
        " round differently in their optimizers (in norms, for example)"
    )


def _evaluates(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    passes = [watched.evaluations for watched in row.of_ranks]
    if max(passes) > MORE * min(passes):
        return (
            f"rank {passes.index(max(passes))} evaluates within the window ({max(passes)} forward"
            f" passes), while another rank evaluates less ({min(passes)}): other ranks wait for it"
        )
    return f"the window has {max(passes)} forward passes that train nothing" if any(passes) else ""


def _shares_evaluation(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    alike = len({watched.evaluations for watched in row.of_ranks}) == 1
    if not alike or row.launches is bases or not same_training.less_beside(row.launches, bases):
        return ""
    return (
        f"a rank evaluates less in the window than on {_of(bases)}, because ranks share the"
        " evaluation: the ratio includes both training and evaluation"
    )


def _late(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return late(row)


def _cpu_time(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    case = row.arm.case
    grows = case.mode is Mode.WEAK and case.world_size > len(bases[0].ranks)
    if not grows or case.device is not Device.CPU or row.seen.sharded:
        return ""
    times = _cpu_of_sample(bases) / max(_cpu_of_sample(row.launches), 1e-12)
    if times <= MOST_TIMES:
        return ""
    return (
        f"a sample takes {times:.2g} times the CPU time on {_of(bases)}: does it do more work there"
        " (files, checks, other options)?"
    )


def _cpu_of_sample(launches: Sequence[LaunchRecord]) -> float:
    """Return the CPU seconds per sample of the busiest rank, in the launch that used least."""
    of_launches = [
        max(rank.cpu_s for rank in launch.ranks) * len(launch.ranks) / launch.consumed
        for launch in launches
        if launch.consumed
    ]
    return min(of_launches, default=0.0)


#: All remarks, in the order in which they are shown.
REMARKS: Sequence[Remark] = (
    steps.slow_steps, steps.in_turn, steps.called, steps.first_loss, steps.statistics,
    steps.unequal_passes, steps.threads, steps.settings, _small_collectives, _reads,
    _exchanged_in_each_pass, _lost, _shards, _uneven, _acted, _workers, _parts, _unusual,
    _skips, _uncleared, _twice, _unstepped, _unlike_parts, _saved_by_several, _read_again,
    _draws_whole, _searched, _rounded, _evaluates, _shares_evaluation, _late, _cpu_time,
)  # fmt: skip
