"""Remarks on where a script's steps lose time, derived from the anatomy of its launches."""

from collections.abc import Sequence
from statistics import median

from harness.analysis.samples.anatomy import INSIDE, common
from harness.analysis.script import same_training
from harness.base.formatting import si
from harness.cases import Device
from harness.interface.report.script.remark import remark
from harness.interface.report.script.row import ScriptRow
from harness.record import LaunchRecord
from harness.record.anatomy import SlowSteps, StepPart

#: Smallest share of a window's time that slow steps take for a remark, in addition to their number.
LOST = 0.1
#: Smallest share of a step for a remark on waiting or on collectives that the script calls.
WAITED = 0.1
#: Number of calls of a collective in a step that could be one.
SEVERAL = 4
#: Ranks wait in turn if they wait for at least this share of a step: ``UNEVEN`` if their inputs
#: differ in size, else ``IN_TURN`` and half of the share of the cores that other processes used.
IN_TURN = 0.15
UNEVEN = 0.05
#: Number of iterators of loaders in a step from which on most steps make one.
MOST_STEPS = 0.5
#: Smallest number of bytes of buffers for a remark on their broadcast.
BROADCAST_BYTES = 100_000
#: Relative difference of learning rates that counts.
RATES = 0.05
#: Samples that differ change a first loss, and the norm of its gradient, by less than this factor.
LOSSES = 1.2
#: What each part of a step is, and what may make it slow at times.
_PLACES = {
    StepPart.BATCHES: "waiting for a batch: are its samples larger, or read from a slow disk?",
    StepPart.FORWARD: "in the forward pass",
    StepPart.BACKWARD: "in the backward pass, on all ranks alike",
    StepPart.OPTIMIZER: "in the optimizer's step",
    StepPart.OTHER: "outside of passes, batches and the optimizer: a log, a metric, an evaluation?",
    StepPart.SAVING: "in torch.save: save less often, or in another thread",
    StepPart.GARBAGE: "in the interpreter's garbage collection: gc.freeze() after the first step,"
    " or gc.disable() and gc.collect() at set steps",
    StepPart.CALLS: "in collectives that the script calls itself",
}


@remark(
    "steps that take more than twice the median, with the part of the step in which they lose time",
    "workers that start anew in each epoch, a checkpoint, an evaluation, garbage collection",
)
def slow_steps(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on a few steps that take much of the time, and on the place of the loss."""
    usual = _usual(row)
    if usual is None:
        return ""
    launches = [launch.anatomy for launch in row.launches if launch.anatomy is not None]
    worst_s = max(anatomy.worst_s for anatomy in launches)
    median_s = median(anatomy.median_s for anatomy in launches)
    which = _which(usual, everywhere=all(anatomy.slow is not None for anatomy in launches))
    return (
        f"{len(usual.steps)} of {_steps(row)} steps take {usual.share:.0%} of the time{which}: up"
        f" to {si(worst_s, 's')} instead of {si(median_s, 's')}. {si(usual.part_s, 's')} of each is"
        f" lost {_place(row, usual)}"
    )


def _usual(row: ScriptRow) -> SlowSteps | None:
    """Return the usual slow steps of a world size's launches, or None if there are none.

    More than half of the launches have them, they take much of the time, and they belong to the
    training.
    """
    launches = [launch.anatomy for launch in row.launches if launch.anatomy is not None]
    slow = [anatomy.slow for anatomy in launches if anatomy.slow is not None]
    if not launches or 2 * len(slow) <= len(launches):
        return None
    parts = [steps.part for steps in slow]
    usual = max(slow, key=lambda steps: parts.count(steps.part))
    timed = usual.part in (StepPart.SAVING, StepPart.GARBAGE)  # other processes are no cause
    load = 0.0 if timed else _load(row)
    much = usual.share >= LOST + len(usual.steps) / _steps(row) + load / 2
    return usual if much and _explained(usual, slow) else None


def _load(row: ScriptRow) -> float:
    """Return the share of the cores that other processes used, the median over launches."""
    return median(launch.foreign_load or 0.0 for launch in row.launches)


def _steps(row: ScriptRow) -> int:
    return max(launch.steps.count for launch in row.launches if launch.steps is not None)


def _explained(usual: SlowSteps, slow: Sequence[SlowSteps]) -> bool:
    """Return whether slow steps belong to the training, and are not due to other processes.

    They belong to it if they are periodic, are the same steps in each launch, begin a pass over the
    data, or lose their time in a call that the training makes.
    """
    if usual.part in (StepPart.SAVING, StepPart.GARBAGE):
        return True
    begins = 2 * usual.begins > len(usual.steps)
    several = len(usual.steps) > 1  # a single slow step may be due to another process
    return several and (begins or usual.every > 0 or common([launch.steps for launch in slow]))


def _which(usual: SlowSteps, *, everywhere: bool) -> str:
    """Return which steps are slow, as a part of a sentence."""
    begins = 2 * usual.begins > len(usual.steps)
    words = []
    if begins:
        words.append("those that begin a pass over the data")
    elif usual.every:
        words.append(f"one in {usual.every}")
    if everywhere:
        words.append("in every launch")
    return f" ({', '.join(words)})" if words else ""


def _place(row: ScriptRow, usual: SlowSteps) -> str:
    """Return where slow steps lose their time, with a remedy."""
    if usual.part is not StepPart.BATCHES or 2 * usual.begins <= len(usual.steps):
        return _PLACES[usual.part]
    if row.seen.workers:
        return (
            "waiting for the first batch: the loader starts its workers anew in each epoch."
            " persistent_workers=True keeps them"
        )
    return "waiting for the first batch: is the data set opened or shuffled anew in each epoch?"


#: The smallest share of a step that a part takes for a remark, and a question about the part.
_LARGE = {
    StepPart.BATCHES: (0.15, "does the loader prepare too few batches ahead (num_workers,"
                       " prefetch_factor), or is a sample slow to make?"),
    StepPart.OPTIMIZER: (0.25, "foreach=True or fused=True step all parameters together"),
    StepPart.OTHER: (0.15, "a log, a metric, an average of weights (EMA), a copy, or other work"
                     " between the passes?"),
    StepPart.SAVING: (0.1, "save less often, or in another thread"),
    StepPart.GARBAGE: (0.1, "is gc.collect() called in the loop? Otherwise gc.freeze() after the"
                       " first step keeps the collector from objects that stay"),
}  # fmt: skip
#: Shorter parts of a step, in s, lead to no remark.
LEAST_S = 2e-3
#: A part grows if it takes more than this many times what it takes on the baseline.
GROWS = 1.6
_ALL_SAMPLES = "does each rank read or prepare the samples of all ranks?"
#: How a remark names each part.
_NAMES = {
    StepPart.BATCHES: "waiting for the batch",
    StepPart.OPTIMIZER: "in the optimizer's step",
    StepPart.OTHER: "outside of batches, passes and the optimizer",
    StepPart.SAVING: "in torch.save",
    StepPart.GARBAGE: "in the interpreter's garbage collection",
}


@remark(
    "mean time of each part of a step: batches, passes, optimizer, files, garbage collection",
    "a loader without workers, logging, an average of weights (EMA), gc.collect() in the loop",
)
def large_parts(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    """Return a remark on parts of a step, other than the passes, that take much of it."""
    parts = _own_parts(row.launches)
    base = _own_parts(bases)
    step_s = sum(parts.get(part, 0.0) for part in StepPart)
    slow = _usual(row)
    load = _load(row)
    questions = []
    for part, (share, question) in _LARGE.items():
        took_s = parts.get(part, 0.0)
        if took_s <= max(LEAST_S, (share + load / 2) * step_s) or (
            slow is not None and slow.part is part
        ):
            continue
        grows = took_s > GROWS * base.get(part, 0.0) and row.launches is not bases
        of_base = f" ({si(base.get(part, 0.0), 's')} on the baseline)" if grows else ""
        if grows and part is StepPart.BATCHES and not row.shared_cores:
            question = _ALL_SAMPLES
        elif grows and part is StepPart.OTHER and _reduces_itself(row):
            question = (
                "the script exchanges gradients after the backward pass."
                " DistributedDataParallel exchanges them during it"
            )
        questions.append(
            f"{si(took_s, 's')} of a step of {si(step_s, 's')}{of_base} is spent {_NAMES[part]}:"
            f" {question}"
        )
    return "; ".join(questions)


#: A script's exchange of gradients carries at least this share of their bytes.
MOST_BYTES = 0.9


def _reduces_itself(row: ScriptRow) -> bool:
    """Return whether the script all-reduces its gradients itself, without a wrapper."""
    calls = row.seen.calls.get("all_reduce")
    issued = row.seen.collectives.get("all_reduce")
    if calls is None or issued is None or row.seen.parallel:
        return False
    gradients = row.seen.trained_bytes or row.seen.parameter_bytes
    return issued.payload_bytes >= MOST_BYTES * gradients


def _own_parts(launches: Sequence[LaunchRecord]) -> dict[StepPart, float]:
    """Return the time of each part of a step in s, the median over launches, without overlaps."""
    parts = mean_parts(launches)
    inside_s = sum(parts.get(part, 0.0) for part in INSIDE)
    return parts | {StepPart.OTHER: max(0.0, parts.get(StepPart.OTHER, 0.0) - inside_s)}


def mean_parts(launches: Sequence[LaunchRecord]) -> dict[StepPart, float]:
    """Return the time of each part of a step in s, the median over launches."""
    known = [launch.anatomy.parts_s for launch in launches if launch.anatomy is not None]
    return {part: median(parts[part] for parts in known) for part in StepPart} if known else {}


@remark(
    "passes over a loader that begin in a step",
    "next(iter(loader)) in each step, which starts the loader's workers anew",
)
def iterators(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on a loader's iterator that is made anew in most steps."""
    begun = [launch.anatomy.begun for launch in row.launches if launch.anatomy is not None]
    if not begun or median(begun) < MOST_STEPS:
        return ""
    workers = ", and start its workers anew" if row.seen.workers else ""
    return (
        f"new iterators of loaders are made in {min(1.0, median(begun)):.0%} of the steps{workers}:"
        " keep one iterator for a whole pass over the data"
    )


@remark(
    "bytes that are broadcast in each step",
    "large buffers, which DistributedDataParallel copies from rank 0 before each forward pass",
)
def broadcasts(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on large buffers that are broadcast in each step."""
    sent = row.seen.collectives.get("broadcast")
    if sent is None or not row.seen.broadcast or sent.payload_bytes < BROADCAST_BYTES:
        return ""
    trained = row.seen.trained_bytes or row.seen.parameter_bytes
    if sent.payload_bytes < WAITED * trained:
        return ""
    return (
        f"{si(float(sent.payload_bytes), 'B')} of buffers are broadcast in each step: constants"
        " need not be buffers, and broadcast_buffers=False leaves the copies out"
    )


@remark(
    "modes of torch and Python that are meant for debugging",
    "anomaly detection, TORCH_DISTRIBUTED_DEBUG=DETAIL, CUDA_LAUNCH_BLOCKING, a tracer",
)
def debugging(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on debugging modes that make steps slower."""
    if not row.seen.modes:
        return ""
    return f"switched on, and slow: {', '.join(row.seen.modes)}"


@remark(
    "learning rates at the same update, at all world sizes",
    "a scheduler that steps once for each rank",
)
def rates(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    """Return a remark on learning rates that depend on the number of ranks.

    The rates are compared at the last update that both launches recorded.
    """
    here, there = (launches[0].ranks[0].watched for launches in (row.launches, bases))
    if here is None or there is None or here.settings != there.settings:
        return ""
    recorded = [*zip(here.rates_at, there.rates_at, strict=False)]
    if not recorded:
        return ""
    update = 2 ** (len(recorded) - 1)
    for ours, theirs in zip(*recorded[-1], strict=False):
        if theirs and abs(ours / theirs - 1) > RATES:
            return (
                f"at update {update} the learning rate is {ours:.3g}, and {theirs:.3g} on the"
                " baseline, although the optimizers were made with the same settings: does the"
                " scheduler step once for each rank?"
            )
    return ""


@remark(
    "times at which the gradients of each rank are complete, in each step",
    "ranks that wait for each other in turn because their batches differ in length",
)
def in_turn(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on ranks that wait for each other in turn."""
    uneven = any(watched.ragged for watched in row.of_ranks)
    shares = [
        (launch.anatomy.in_turn_s, launch.anatomy.median_s, launch.foreign_load or 0.0)
        for launch in row.launches
        if launch.anatomy is not None and launch.anatomy.in_turn_s is not None
    ]
    late = [
        waited_s
        for waited_s, step_s, load in shares
        if waited_s > (UNEVEN if uneven else IN_TURN + load / 2) * step_s
    ]
    if not shares or 2 * len(late) <= len(shares):
        return ""
    cause = (
        "their inputs differ in size. Batches of equal work on all ranks avoid this (sort or"
        " bucket by length)"
        if uneven
        else "does the work of a batch differ between ranks?"
    )
    return f"ranks wait for each other in turn, {si(median(late), 's')} a step: {cause}"


@remark(
    "collectives that the script calls itself: their number, and the host's time in them",
    "barriers in each step, objects gathered in each step, a logged loss that is reduced",
)
def called(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on collectives that the script calls and that take much of a step."""
    calls = row.seen.calls
    if row.arm.case.world_size < 2 or not calls:
        return ""
    step_s = median(_step_s(launch) for launch in row.launches)
    of_launches = [
        {name: call.host_s for name, call in seen.calls.items()}
        for launch in row.launches
        for rank in launch.ranks
        if (seen := rank.watched) is not None
    ]
    name = max(calls, key=lambda kind: median(of.get(kind, 0.0) for of in of_launches))
    host_s = median(of_rank.get(name, 0.0) for of_rank in of_launches)
    count = calls[name].count
    if name == "barrier" and count >= 1:
        return (
            f"{count:.3g} barriers in a step take {si(host_s, 's')} of it, because all ranks wait"
            " for the slowest at each: the exchange of gradients already makes ranks wait, so a"
            " training needs none"
        )
    if host_s < WAITED * step_s:
        return ""
    if "object" in name:
        remedy = "call it in fewer steps, or gather tensors, which need no pickling"
    elif count >= SEVERAL:
        remedy = "join several values in one tensor, or call it with async_op=True"
    else:
        return ""  # one call may be the exchange of gradients
    times = f"{count:.3g} call{'s' * (count > 1)}"
    return f"the host spends {si(host_s, 's')} of a step in {times} of {name}: {remedy}"


def _step_s(launch: LaunchRecord) -> float:
    return launch.steps.mean_s if launch.steps is not None else 0.0


@remark(
    "first loss and norm of the first gradient, at all world sizes",
    "a loss that is multiplied or divided by the number of ranks",
)
def first_loss(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    """Return a remark on a first loss that is multiplied or divided by the number of ranks.

    The norm of the gradient has to be off, too. Otherwise the exchange of gradients compensates for
    it. If a gradient is mostly noise, its norm falls with the square root of the samples.
    """
    times = row.arm.case.world_size / len(bases[0].ranks)
    here, there = (_first_losses(side) for side in (row.launches, bases))
    norms = [same_training.norm(launches[0]) for launches in (row.launches, bases)]
    if times <= 1 or not here or not there or not median(there) or not norms[1]:
        return ""
    losses = median(here) / median(there)
    of_gradient = norms[0] / norms[1]
    for factor, done in ((times, "multiplied"), (1 / times, "divided")):
        least = factor / times**0.5 / LOSSES
        off = factor / LOSSES < losses < factor * LOSSES
        if off and least < of_gradient < factor * LOSSES:
            base = "one rank" if len(bases[0].ranks) == 1 else f"{len(bases[0].ranks)} ranks"
            return (
                f"the first loss is {losses:.3g} times the loss on {base}, and so is the gradient:"
                f" is the loss {done} by the number of ranks? DistributedDataParallel averages"
                " gradients already"
            )
    return ""


def _first_losses(launches: Sequence[LaunchRecord]) -> list[float]:
    known = (launch.anatomy.first_loss for launch in launches if launch.anatomy is not None)
    return [loss for loss in known if loss is not None]


@remark(
    "buffers of the replicas at the end, if no wrapper copies them",
    "statistics of batch norm that each rank keeps alone",
)
def statistics(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on buffers that differ between replicas and are never synchronised."""
    seen = row.of_ranks
    if len(seen) < 2 or row.seen.sharded or row.seen.broadcast:
        return ""
    if not all(watched.buffers for watched in seen) or len({w.buffers for w in seen}) == 1:
        return ""
    layers = ", ".join(row.seen.statistics[:3]) or "the model"
    return (
        f"buffers of {layers} differ between ranks, and nothing copies them: evaluations and"
        " checkpoints depend on the rank. SyncBatchNorm shares statistics, broadcast_buffers=True"
        " copies rank 0's"
    )


@remark(
    "number of batches in a pass over the data, on each rank",
    "shards of unequal length",
)
def unequal_passes(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on ranks whose passes over the data have unequal numbers of batches."""
    lengths = [watched.pass_batches for watched in row.of_ranks]
    if not all(lengths) or len(set(lengths)) == 1:
        return ""
    return (
        f"a pass over the loader has {max(lengths)} batches on rank {lengths.index(max(lengths))}"
        f" and {min(lengths)} on rank {lengths.index(min(lengths))}, so ranks are in different"
        " epochs, and wait forever for each other if an epoch ends with a collective: give all"
        " ranks equally many batches"
    )


@remark(
    "threads and cores of a rank when the window ends",
    "OMP_NUM_THREADS, a changed affinity",
)
def threads(row: ScriptRow, _: Sequence[LaunchRecord]) -> str:
    """Return a remark on ranks that compute with fewer threads than they have cores, or more."""
    seen = row.seen
    if row.arm.case.device is not Device.CPU or not seen.cores or seen.threads == seen.cores:
        return ""
    return (
        f"torch computes with {seen.threads} thread{'s' * (seen.threads != 1)}, and a rank may use"
        f" {seen.cores} core{'s' * (seen.cores != 1)} when the window ends: does the script set"
        " OMP_NUM_THREADS, torch.set_num_threads or the affinity?"
    )


@remark(
    "settings with which each optimizer was made, at all world sizes",
    "a learning rate that depends on the number of ranks",
)
def settings(row: ScriptRow, bases: Sequence[LaunchRecord]) -> str:
    """Return a remark on optimizers whose settings differ from those of the baseline."""
    there = bases[0].ranks[0].watched
    if there is None or not there.settings or row.seen.settings == there.settings:
        return ""
    pairs = zip(row.seen.settings, there.settings, strict=False)
    here, base = next(((a, b) for a, b in pairs if a != b), ("", ""))
    unlike = [(a, b) for a, b in zip(here.split(" "), base.split(" "), strict=False) if a != b]
    listed = ", ".join(f"{a} ({b.partition('=')[2]} on the baseline)" for a, b in unlike)
    return f"the optimizer's settings depend on the number of ranks: {listed}" if listed else ""
