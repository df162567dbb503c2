"""Remarks on what a script does, derived from the observations of its ranks."""

from collections.abc import Sequence

from harness.analysis.judging.biases import MOST_TIMES
from harness.analysis.script import counting, exchanges, same_training
from harness.analysis.script.replicas import FEW, by_rounding
from harness.cases import Device, Mode
from harness.interface.report.script.late import late
from harness.interface.report.script.remark import remark
from harness.interface.report.script.row import ScriptRow
from harness.record import LaunchRecord
from harness.record.rank import PART

#: Smallest share of a step's samples that repeat other samples for a remark.
AGAIN = 0.4
#: Numbers of targets, or norms, differ if one is larger than another by this factor.
UNEVEN = 1.05
#: Smallest number of graphs of earlier steps for a remark. A few may be kept on purpose.
MANY_GRAPHS = 8
#: A rank evaluates if its passes that train nothing exceed another rank's by this factor.
MORE = 1.5


def _of(bases: Sequence[LaunchRecord]) -> str:
    """Return the number of ranks of the smallest world size as text."""
    num_ranks = len(bases[0].ranks)
    return "one rank" if num_ranks == 1 else f"{num_ranks} ranks"


@remark(
    "collectives of a few values",
    "a loss or norm that is reduced in each step",
)
def _small_collectives(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    small = row.seen.small
    if not small or row.arm.case.world_size < 2:
        return ""
    return (
        f"{small} collective{'s' * (small > 1)} of a few values in the last step: a loss that is"
        " logged, or a norm? Each makes all ranks wait for each other"
    )


@remark(
    "reads of single values (`.item()`) in a step",
    "the host waits for the GPU at each",
)
def _reads(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    reads = row.seen.reads
    if reads < 1:
        return ""
    return (
        f"a step reads {reads:.3g} single value{'s' * (reads > 1)} by .item(): if the tensor is"
        " on a GPU, each read waits for it"
    )


@remark(
    "bytes exchanged in each backward pass of an update",
    "`no_sync()` is missing while gradients accumulate",
)
def _exchanged_in_each_pass(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return exchanges.accumulated(row.seen) if row.arm.case.world_size > 1 else ""


@remark(
    "gradients that are cleared between two backward passes of one update, if these "
    "passes have different samples",
    "`zero_grad()` in the wrong place (SAM and LBFGS cause no remark)",
)
def _lost(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return exchanges.lost(row.seen)


@remark(
    "bytes that are gathered, reduced and scattered, relative to the parameters (FSDP)",
    "a block that is wrapped twice, gradients that are exchanged in every pass",
)
def _shards(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    several = row.seen.sharded and row.arm.case.world_size > 1
    return "; ".join(exchanges.shards(row.seen)) if several else ""


@remark(
    "bytes exchanged in each step",
    "steps of several updates, steps without an exchange (local SGD)",
)
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


@remark(
    "forward passes that train nothing, before the timed steps only",
    "rollouts or evaluations that the window does not contain",
)
def _acted(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    watched = row.seen
    if not watched.acted or watched.evaluations:
        return ""
    return (
        f"{watched.acted} forward passes that train nothing came before the window, and none in it:"
        " if rollouts or evaluations come once in many updates, use a longer window (--steps)"
    )


@remark(
    "number of loader workers, at all world sizes",
    "a ratio that depends on the workers, too",
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


@remark(
    "rows that reach the model for each sample of the loader",
    "pairs or views that are counted as samples",
)
def _parts(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    makes_batches = row.seen.drawn == 1
    if makes_batches or row.arm.case.samples_per_step:
        return ""
    parts = counting.parts_of_one(row.seen)
    if parts < 2:
        return ""
    # --samples-per-step counts the samples of one rank (weak scaling) or of all ranks (strong).
    weak = row.arm.case.mode is Mode.WEAK
    handed_out = row.seen.drawn if weak else counting.handed_out(row.launches[0].ranks)
    return (
        f"the model gets {parts} rows for each sample of the loader (a pair, or views?), and rows"
        f" are counted: --samples-per-step {handed_out:g} counts samples instead"
    )


@remark(
    "steps with another number of backward passes",
    "the last step of an epoch, a skipped update; their samples are counted",
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


@remark(
    "more forward passes than backward passes",
    "batches that are skipped after their forward pass; they are counted",
)
def _skips(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.skips or row.seen.unusual:
        return ""
    return (
        "some steps have more forward passes than others, but the same number of backward passes:"
        " is a batch skipped after its forward pass? Its samples are counted as well"
    )


@remark(
    "gradients when the third update begins",
    "`zero_grad()` is missing",
)
def _uncleared(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.uncleared:
        return ""
    return "gradients still exist when the next update begins: is zero_grad() missing?"


@remark(
    "an optimizer step without a new backward pass",
    "`optimizer.step()` is called twice",
)
def _twice(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.twice:
        return ""
    return "an optimizer steps twice with one gradient: is optimizer.step() called twice?"


@remark(
    "parameters with gradients in no optimizer",
    "a head that the optimizer lacks",
)
def _unstepped(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.unstepped:
        return ""
    return f"parameters of {', '.join(row.seen.unstepped)} get gradients, but no optimizer has them"


@remark(
    "ranks divide different parts of a data set",
    "`random_split` without a seed (as in PyTorch's minGPT-ddp)",
)
def _unlike_parts(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    parts = [watched.sampler.partition(PART)[2] for watched in row.of_ranks]
    if len(set(parts)) < 2 or not all(parts):
        return ""
    return (
        f"ranks divide different parts of one data set ({parts[0]} on rank 0), so some samples are"
        " drawn twice, and others are held out by one rank only: does random_split have a seed?"
    )


@remark(
    "one file that several ranks save by `torch.save`",
    "`if rank == 0` is missing",
)
def _saved_by_several(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    writers: dict[tuple[str, str], list[int]] = {}
    for rank in row.launches[0].ranks:
        for name in rank.watched.saved if rank.watched is not None else ():
            writers.setdefault((rank.host, name), []).append(rank.rank)
    shared = {name: ranks for (_, name), ranks in writers.items() if len(ranks) > 1}
    if not shared:
        return ""
    name, ranks = next(iter(shared.items()))
    return (
        f"ranks {', '.join(map(str, ranks[:FEW]))} all write the file {name}: is `if rank == 0:`"
        " missing?"
    )


@remark(
    "samples of a step that the previous step had",
    "all workers of a loader read the same samples",
)
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


@remark(
    "each rank draws from a whole data set that stores no samples",
    "a DistributedSampler is missing, unless each rank generates other samples",
)
def _draws_whole(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    if row.seen.stored or not same_training.draws_whole(row.launches[0], bases[0]):
        return ""
    return (
        f"each rank draws from all {row.seen.whole:,} samples of a data set that stores none:"
        " correct if each rank generates other samples, else a DistributedSampler is missing"
    )


@remark(
    "`find_unused_parameters` with no unused parameter",
    "an unneeded search of the graph in every step",
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


@remark(
    "replicas that differ by rounding only",
    "ranks that round differently in their optimizers",
)
def _rounded(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    apart = by_rounding(row.of_ranks)
    if not apart or row.seen.sharded:
        return ""
    return (
        f"replicas differ by {apart:.1g} times the change of the parameters by training: ranks"
        " round differently in their optimizers (in norms, for example)"
    )


@remark(
    "forward passes that train nothing, in the timed steps",
    "a rank that evaluates while others wait, or an evaluation that all ranks share",
)
def _evaluates(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    passes = [watched.evaluations for watched in row.of_ranks]
    if max(passes) > MORE * min(passes):
        return (
            f"rank {passes.index(max(passes))} evaluates within the window ({max(passes)} forward"
            f" passes), while another rank evaluates less ({min(passes)}): other ranks wait for it"
        )
    return f"the window has {max(passes)} forward passes that train nothing" if any(passes) else ""


@remark(
    "evaluation of each rank, at all world sizes",
    "a ratio that includes a shared evaluation",
)
def _shares_evaluation(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    alike = len({watched.evaluations for watched in row.of_ranks}) == 1
    if not alike or row.launches is bases or not same_training.less_beside(row.launches, bases):
        return ""
    return (
        f"a rank evaluates less in the window than on {_of(bases)}, because ranks share the"
        " evaluation: the ratio includes both training and evaluation"
    )


@remark(
    "time of each rank before its backward pass",
    'a slow rank, or a rank that does more in some steps (evaluation, checkpoint); "not '
    'checked" if other processes used the cores',
)
def _late(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    return late(row)


@remark(
    "CPU time of a sample, at all world sizes",
    "a ratio that includes other work (files, checks)",
)
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


@remark(
    "targets behind the mean losses of the first backward passes",
    "a mean of means over unequal numbers of tokens",
)
def _mean_of_means(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    of_ranks = [watched.mean_targets for watched in row.of_ranks]
    if not all(of_ranks):
        return ""
    together = list(zip(*of_ranks, strict=False))
    uneven = [counts for counts in together if _unequal(counts)]
    if 2 * len(uneven) > len(together):
        most = max(uneven[0])
        least = min(uneven[0])
        where = (
            f"{most} targets on rank {uneven[0].index(most)} and over {least} on rank"
            f" {uneven[0].index(least)}"
        )
    elif row.seen.backwards > len(row.seen.optimizers) and _unequal(of_ranks[0]):
        most = max(of_ranks[0])
        least = min(of_ranks[0])
        where = f"{most} targets in one backward pass and over {least} in another"
    else:
        return ""
    return (
        f"losses are means over {where}, and their gradients are averaged, so targets in short"
        " batches count more: divide the sum of all losses by the number of all targets"
    )


def _unequal(counts: Sequence[float]) -> bool:
    return max(counts) > UNEVEN * min(counts)


@remark(
    "norms by which each rank clips its gradients",
    "the norm of a rank's shard instead of that of all shards",
)
def _clipped_apart(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    norms = list(zip(*(watched.clipped_norms for watched in row.of_ranks), strict=False))
    apart = [of_ranks for of_ranks in norms if _unequal(of_ranks)]
    if row.seen.silent or 2 * len(apart) <= len(norms):
        return ""
    listed = ", ".join(f"{norm:.3g}" for norm in apart[0][:4])
    return (
        f"ranks clip their gradients by different norms ({listed}): is it the norm of a"
        " shard, or of gradients before their exchange? FSDP's method clip_grad_norm_ includes all"
        " shards"
    )


@remark(
    "clipping while the factor of a gradient scaler is in the gradients",
    "`scaler.unscale_(optimizer)` is missing before `clip_grad_norm_`",
)
def _clipped_scaled(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.clipped_scaled:
        return ""
    return (
        "gradients are clipped before the gradient scaler has unscaled them, so the limit applies"
        " to scaled gradients: call scaler.unscale_(optimizer) before clip_grad_norm_"
    )


@remark(
    "graphs of earlier steps that still exist",
    "`total += loss` keeps the graph of every step, so memory grows",
)
def _graphs_kept(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    kept = row.seen.graphs_kept
    if kept < MANY_GRAPHS:
        return ""
    return (
        f"the graphs of {kept} earlier steps still exist, so memory grows with each step: is a loss"
        " added up or stored with its graph (total += loss)? Use loss.detach()"
    )


@remark(
    "collectives before a backward pass on tensors that need gradients",
    "`dist.all_reduce` or `all_gather` within the loss, through which no gradient flows",
)
def _without_gradient(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if row.seen.without_gradient < 2 or row.arm.case.world_size < 2:
        return ""
    return (
        "a collective is called on tensors of the graph before the backward pass, and no gradient"
        " flows through it: torch.distributed.nn.functional has collectives with gradients"
    )


@remark(
    "cores that each rank may use when the window ends",
    "a library that pins all ranks of a machine to the same cores",
)
def _same_cores(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.shared_cores:
        return ""
    listed = ", ".join(map(str, row.shared_cores))
    return (
        f"all ranks of one machine may only use the same cores ({listed}) when the window ends:"
        " does the script or a library set the affinity (sched_setaffinity, GOMP_CPU_AFFINITY)?"
    )


@remark(
    "first batch of each pass over a data set that has `set_epoch`",
    "persistent workers, whose copies of the data set keep the first epoch",
)
def _same_passes(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    if not row.seen.same_passes:
        return ""
    why = (
        ": the loader's workers have copies that set_epoch does not reach. Set the epoch in shared"
        " memory, or use persistent_workers=False"
        if row.seen.workers
        else ": is set_epoch called before each pass?"
    )
    return f"each pass over the data begins with the same batch, although it has set_epoch{why}"


def _cpu_of_sample(launches: Sequence[LaunchRecord]) -> float:
    """Return the CPU seconds per sample of the busiest rank, in the launch that used least."""
    of_launches = [
        max(rank.cpu_s for rank in launch.ranks) * len(launch.ranks) / launch.consumed
        for launch in launches
        if launch.consumed
    ]
    return min(of_launches, default=0.0)
