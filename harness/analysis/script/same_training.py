"""Check that launches of a user's script in different worlds run the same training."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from harness.analysis.script.check import Worlds, of_worlds
from harness.base.formatting import si
from harness.cases import CaseSpec, Mode
from harness.record import LaunchRecord, ScriptObservations

#: Relative differences of gradient norms that rounding explains. ``COARSE_NORMS`` applies if
#: forward passes return 16-bit values.
NORMS = 1e-4
COARSE_NORMS = 2e-2
#: Ratio of gradient norms from which on they count as different. The norm with a summed loss is at
#: least twice the norm with a mean loss. Smaller ratios occur with a mean over tokens, if ranks
#: divide the same samples differently and thus get other numbers of tokens.
SUMMED = 1.4
#: Relative deviation of the number of samples in a step that batches of different sizes explain.
RAGGED = 0.02
#: If the number of samples varies between steps, the allowed deviation is this many standard
#: errors, but at most ``MOST_RAGGED``.
SIGMAS = 3.0
MOST_RAGGED = 0.25
#: Beginning of the message that reports a wrong number of samples in a step.
_AMOUNTS = "count: a step has"
#: If a launch has less than this share of another launch's work, or of its distinct rows, the two
#: are not the same training.
LESS = 0.9
#: Largest number of ranks for which a message lists the numbers of rows.
FEW = 4
#: Allowed difference between two launches in the share of updates that change no weight.
IDLE = 0.15


def unlike(
    case: CaseSpec,
    mine: Sequence[LaunchRecord],
    base: Sequence[LaunchRecord],
    *,
    edited: bool = False,
) -> str | None:
    """Return the first difference between the trainings of a case and its baseline, or None.

    ``mine`` and ``base`` are their launches. ``edited`` says that the two are versions of one
    script, so its file may differ between them.
    """
    for launches in (mine, base) if edited else ([*mine, *base],):
        if len({_seen(launch).source for launch in launches}) > 1:
            return "the script's file was changed between launches"
    differences = of_worlds.failed(Worlds(case, mine, base, edited))
    return next((difference for difference in differences if not case.accepts(difference)), None)


def accepted(
    case: CaseSpec, mine: Sequence[LaunchRecord], base: Sequence[LaunchRecord]
) -> list[str]:
    """Return the differences that the user accepts as intended."""
    return [x for x in of_worlds.failed(Worlds(case, mine, base)) if case.accepts(x)]


def may_be_ragged(difference: str) -> bool:
    """Return whether a difference between short launches may disappear in longer launches.

    This applies to the number of samples, because short last batches of epochs matter less in a
    longer launch. It does not apply if the number fits the other scaling mode.
    """
    return difference.startswith(_AMOUNTS) and "(--mode " not in difference


@of_worlds(
    "start",
    "parameters before the first step, if a seed is set before the model is made",
    "launches of one world size that start from different parameters, for example because one"
    " resumed from a checkpoint. Without a fixed seed, launches are compared by speed only",
)
def _starts(worlds: Worlds) -> Iterator[str]:
    """Report launches of one world that use the same seed and begin with different parameters.

    Worlds may use different seeds (EDM's is ``seed * world_size + rank``), and each launch may draw
    a random seed.
    """
    if seeded([*worlds.mine, *worlds.base]):
        yield from _starts_of(worlds.mine)
        yield from _starts_of(worlds.base)


def _starts_of(launches: Sequence[LaunchRecord]) -> Iterator[str]:
    if len({_seen(launch).seed for launch in launches}) > 1:
        return
    starts = {_seen(launch).start: launch.launch for launch in launches}
    ways = {(_seen(launch).way, _seen(launch).start) for launch in launches}
    if len(starts) == len(ways) == 2 and len({way for way, _ in ways}) == 2:
        yield "forks and new interpreters begin with different parameters: use --fresh"
    elif len(starts) > 1:
        few = " and ".join(list(starts.values())[:2])
        yield (
            f"{few} begin with different parameters: was one resumed, or are some"
            " parameters uninitialized (to_empty)?"
            " A script that resumes from its last checkpoint needs a folder without one"
        )


@of_worlds(
    "optimizers", "optimizers that step, at all world sizes", "another optimizer on more ranks"
)
def _optimizers(worlds: Worlds) -> Iterator[str]:
    for a, b in worlds.pair:
        if _seen(a).optimizers != _seen(b).optimizers:
            yield f"{_seen(a).optimizers} step here, {_seen(b).optimizers} on {_of(b)}"


@of_worlds(
    "precision", "dtype of the forward pass, at all world sizes", "a lower precision on more ranks"
)
def _precision(worlds: Worlds) -> Iterator[str]:
    for a, b in worlds.pair:
        here, there = (launch.ranks[0].ran.compute_dtype for launch in (a, b))
        if here and there and here != there:
            yield f"the forward pass returns {here} here, {there} on {_of(b)}"


@of_worlds(
    "samples",
    "data sets of the loaders, at all world sizes",
    "a missing DistributedSampler behind augmentation or shuffling",
)
def _whole_data(worlds: Worlds) -> Iterator[str]:
    """Report replicas whose loaders each draw from the whole data set.

    The content of samples does not show this. Augmentation changes the rows of a sample, and ranks
    may shuffle with different seeds.
    """
    for a, b in worlds.pair:
        if draws_whole(a, b) and _seen(a).stored:
            yield (
                f"each of {worlds.case.world_size} ranks draws from all {_seen(a).whole:,} samples"
                f" of the data set, as on {_of(b)}: is a DistributedSampler missing?"
            )


def draws_whole(a: LaunchRecord, b: LaunchRecord) -> bool:
    """Return whether each of several replicas draws from a data set as large as the baseline's.

    If the data sets of the replicas store entries, the entries also have to be the same.
    """
    seen = [rank.watched for rank in a.ranks if rank.watched is not None]
    size = _seen(b).whole
    alike = len({watched.stored for watched in seen}) == 1
    return (
        bool(size)
        and alike
        and len(seen) > 1
        and all(watched.parallel and watched.whole == size for watched in seen)
    )


def _of(launch: LaunchRecord) -> str:
    """Return the number of ranks of a baseline as text."""
    return "one rank" if len(launch.ranks) == 1 else f"{len(launch.ranks)} ranks"


@of_worlds(
    "count",
    "samples of a mean or median step, at all world sizes",
    "strong scaling declared as weak, and the reverse. Short last batches and token budgets are"
    " correct",
)
def _amounts(worlds: Worlds) -> Iterator[str]:
    """Report a number of samples that does not fit the scaling mode.

    In weak scaling, every rank has the same number of samples in a step at all world sizes. In
    strong scaling, the sum over ranks is the same. Either the mean step or the median step has to
    fit, because epochs may end in a short batch.
    """
    if not worlds.pair:
        return
    case = worlds.case
    mine = worlds.mine
    base = worlds.base
    times = {Mode.WEAK: case.world_size / len(base[0].ranks), Mode.STRONG: 1.0}
    here, there = (median(map(_mean_samples, side)) for side in (mine, base))
    usual = [median(map(_usual_samples, side)) for side in (mine, base)]
    off = {
        mode: min(abs(a / (b * times[mode]) - 1) for a, b in ((here, there), usual) if b)
        for mode in times
        if there
    }
    ragged = min(MOST_RAGGED, max(RAGGED, SIGMAS * math.hypot(_error(mine), _error(base))))
    if off and off[case.mode] > ragged:
        other = Mode.STRONG if case.mode is Mode.WEAK else Mode.WEAK
        ask = f" (--mode {other}?)" if off[other] <= ragged else ""
        if ask and other is Mode.WEAK and _seen(mine[0]).cut:
            ask = (
                ", unless ranks hold parts of the same samples (then --samples-per-step"
                f" {there:g} --accept samples)"
            )
        yield (
            f"a step has {here:g} samples{_of_ranks(mine[0])}, {there:g} on {_of(base[0])}:"
            f" {case.mode} scaling would have {there * times[case.mode]:g}{ask}"
        )


def _error(launches: Sequence[LaunchRecord]) -> float:
    """Return the relative standard error of the mean number of samples in a step.

    The number varies, for example, if batches have a budget of tokens.
    """
    watched = [rank.watched for rank in launches[0].ranks if rank.watched is not None]
    steps = launches[0].steps.count if launches[0].steps is not None else 1
    return max(w.spread for w in watched) / math.sqrt(len(watched) * steps)


def _mean_samples(launch: LaunchRecord) -> float:
    return launch.consumed / launch.steps.count if launch.steps is not None else 0.0


def _usual_samples(launch: LaunchRecord) -> float:
    """Return the median number of samples in a step, which short last batches do not affect."""
    usual = [rank.watched.usual for rank in launch.ranks if rank.watched is not None]
    return _mean_samples(launch) * median(usual)


def _of_ranks(launch: LaunchRecord) -> str:
    """Return the number of rows that reached each rank in the last step, as text.

    Return an empty string if all numbers are equal.
    """
    rows = [sum(rank.watched.roots.values()) for rank in launch.ranks if rank.watched is not None]
    if len(set(rows)) < 2:
        return ""
    listed = ", ".join(map(str, rows[:FEW])) + (", .." if len(rows) > FEW else "")
    return f" (its ranks get {listed} rows)"


@of_worlds(
    "work",
    "FLOPs of a sample in the step after the timed ones, without the optimizer's",
    "a part of the model or batch that is omitted or frozen on more ranks, an evaluation that only"
    " the baseline makes. FLOPs are compared only if that step is a usual one and all inputs have"
    " the same size",
)
def _work(worlds: Worlds) -> Iterator[str]:
    """Report samples with less work than in the baseline.

    The work inside and outside of the training is compared. The sizes of batches may vary, so a
    difference counts only if every launch has less than all launches of the baseline. Nothing is
    reported if an optimizer computes the loss a varying number of times (LBFGS).
    """
    mine = worlds.mine
    base = worlds.base
    if not worlds.pair or _varies(worlds):
        return
    of_subject = max(map(_per_sample, mine))
    there = min(map(_per_sample, base))
    if works_known([*mine, *base]) and of_subject < LESS * there:
        yield (
            f"a sample takes {of_subject / there:.3g} of the FLOPs that it takes on"
            f" {_of(base[0])}: does this world skip a part of the model or of the batch, or does"
            " the baseline do additional work?"
        )
    if less_beside(mine, base) and max(map(_aside_of_all, mine)) < LESS * min(
        map(_aside_of_all, base)
    ):
        there = min(map(_aside, base))
        here = max(map(_aside, mine))
        yield (
            f"a rank computes up to {si(here, 'FLOP')} outside its training in a step, and"
            f" {si(there, 'FLOP')} on {_of(base[0])}: does the baseline evaluate?"
        )


@of_worlds(
    "samples", "repeated rows of a step, at all world sizes", "a batch that is filled with copies"
)
def _copies(worlds: Worlds) -> Iterator[str]:
    if not worlds.pair or _varies(worlds):
        return
    here = max(map(_distinct, worlds.mine))
    there = min(map(_distinct, worlds.base))
    if here < LESS * there:
        yield (
            f"{here:.0%} of the rows of a step are distinct here,"
            f" {there:.0%} on {_of(worlds.base[0])}: is a part of the batch repeated?"
        )


def _varies(worlds: Worlds) -> bool:
    """Return whether an optimizer computes the loss a varying number of times (LBFGS)."""
    every = (*worlds.mine, *worlds.base)
    return any(_seen(launch).cleared and not _seen(launch).even for launch in every)


@of_worlds(
    "updates",
    "changes of the weights, at all world sizes",
    "an optimizer that skips updates at some world sizes",
)
def _updates(worlds: Worlds) -> Iterator[str]:
    """Report if the share of updates that change no weight differs from the baseline's share."""
    if not worlds.pair:
        return
    base = worlds.base
    here, there = (
        [rank.watched.idle for x in side for rank in x.ranks if rank.watched is not None]
        for side in (worlds.mine, base)
    )
    if min(here) > max(there) + IDLE:
        yield (
            f"{min(here):.0%} of the optimizer's steps leave the weights unchanged,"
            f" {max(there):.0%} on {_of(base[0])}: is the update skipped on several ranks?"
        )
    if min(there) > max(here) + IDLE:
        yield (
            f"{min(there):.0%} of the optimizer's steps leave the weights unchanged on"
            f" {_of(base[0])}, {max(here):.0%} here: is the update skipped there?"
        )


def works_known(launches: Sequence[LaunchRecord]) -> bool:
    """Return whether the FLOPs of a sample are known for each launch."""
    return all(map(_per_sample, launches))


def _per_sample(launch: LaunchRecord) -> float:
    """Return the FLOPs of a sample; 0 if they are unknown.

    They are unknown if they were not counted on every rank, or if samples differ in size.
    """
    watched = [rank.watched for rank in launch.ranks if rank.watched is not None]
    if not launch.consumed or not all(w.flops for w in watched) or any(w.ragged for w in watched):
        return 0.0
    return sum(w.flops for w in watched) / _usual_samples(launch)


def less_beside(mine: Sequence[LaunchRecord], base: Sequence[LaunchRecord]) -> bool:
    """Return whether ranks compute less outside their training than the baseline's ranks.

    It must be less both in a step and for a sample. A possible reason is an evaluation that ranks
    skip, or divide between them.
    """
    if not works_known([*mine, *base]):
        return False
    in_a_step = max(map(_aside, mine)) < LESS * min(map(_aside, base))
    of_sample = max(map(_aside_of_sample, mine)) < LESS * min(map(_aside_of_sample, base))
    return in_a_step and of_sample


def _aside(launch: LaunchRecord) -> float:
    """Return the FLOPs of a step that no gradient depends on, on the rank with most of them."""
    return max(rank.watched.aside for rank in launch.ranks if rank.watched is not None)


def _aside_of_all(launch: LaunchRecord) -> float:
    """Return the FLOPs of a step that no gradient depends on, summed over ranks."""
    return sum(rank.watched.aside for rank in launch.ranks if rank.watched is not None)


def _aside_of_sample(launch: LaunchRecord) -> float:
    """Return the FLOPs per sample that no gradient depends on, summed over ranks.

    An example is the work of a frozen part of the model.
    """
    if launch.steps is None or not launch.consumed:
        return 0.0
    return _aside_of_all(launch) / (launch.consumed / launch.steps.count)


def _distinct(launch: LaunchRecord) -> float:
    return min(rank.watched.distinct for rank in launch.ranks if rank.watched is not None)


def gradients_differ(a: LaunchRecord, b: LaunchRecord) -> bool:
    """Return whether the first step's gradients differ although they should be equal."""
    return any(_norms_differ(a, b, edited=False))


def norms_over(a: LaunchRecord, b: LaunchRecord) -> float:
    """Return the gradient norm of the first step in ``a``, divided by the one in ``b``.

    Return 1 if the norms agree, or if they cannot be compared. They can be compared if both
    trainings begin with the same parameters and samples, draw no random numbers, and have whole
    replicas.
    """
    if not same_samples(a, b) or not begin_alike([a, b]) or random([a, b]) or cut([a, b]):
        return 1.0
    here = norm(a)
    there = norm(b)
    coarse = a.ranks[0].ran.compute_dtype in ("bfloat16", "float16")
    if not there or abs(here / there - 1) <= (COARSE_NORMS if coarse else NORMS):
        return 1.0
    return here / there


@of_worlds(
    "gradients",
    "norm of the first gradient, if world sizes had the same samples and forward passes draw no"
    " random numbers",
    "a loss or gradient that is summed instead of averaged. If the norm is less than 1.4 times as"
    ' large, the line says "not checked", because a mean over each rank\'s tokens has this effect,'
    " too",
)
def _gradients(worlds: Worlds) -> Iterator[str]:
    for a, b in worlds.pair:
        yield from _norms_differ(a, b, worlds.edited)


def _norms_differ(a: LaunchRecord, b: LaunchRecord, edited: bool) -> Iterator[str]:
    ratio = norms_over(a, b)
    if ratio == 1.0 or (not edited and 1 / SUMMED < ratio < SUMMED):
        return
    first = f"their norm in the first step is {ratio:.4g} times that"
    if edited:
        yield (
            f"{first} of the other version, although both train on the same samples: the versions"
            " train different models or losses, so the speeds are not comparable"
        )
    else:
        yield (
            f"{first} on {_of(b)}, with the same samples: is the loss or the gradient"
            f" {'summed, not averaged' if ratio > 1 else 'divided twice, or clipped'}?"
        )


def begin_alike(launches: Sequence[LaunchRecord]) -> bool:
    """Return whether all launches begin with the same parameters.

    The shards of different worlds cannot be compared. If parameters are sharded, launches with the
    same seed count as launches with the same parameters. Without a seed, each launch begins with
    different parameters. This is not an error, and does not affect the speed.
    """
    one_seed = len({_seen(launch).seed for launch in launches}) == 1
    if seeded(launches) and one_seed and any(_seen(launch).sharded for launch in launches):
        return True
    starts = {_seen(launch).start for launch in launches}
    known = seeded(launches) or len(launches) > 1
    return known and len(starts) == 1 and "" not in starts


def seeded(launches: Sequence[LaunchRecord]) -> bool:
    """Return whether all launches set a seed before they made a model."""
    return all(_seen(launch).seeded for launch in launches)


def random(launches: Sequence[LaunchRecord]) -> bool:
    """Return whether forward passes draw random numbers, for example for dropout.

    These numbers differ between ranks.
    """
    return any(
        rank.watched.random
        for launch in launches
        for rank in launch.ranks
        if rank.watched is not None
    )


def cut(launches: Sequence[LaunchRecord]) -> bool:
    """Return whether ranks hold parts of one model instead of replicas."""
    return any(_seen(launch).sharded and not _seen(launch).parallel for launch in launches)


def same_samples(a: LaunchRecord, b: LaunchRecord) -> bool:
    """Return whether both launches trained on the same samples in the first step.

    The sums of the samples' hashes are compared.
    """
    first, second = (
        sum(int(rank.watched.first, 16) for rank in launch.ranks if rank.watched is not None)
        % 2**64
        for launch in (a, b)
    )
    return first == second != 0


def norm(launch: LaunchRecord) -> float:
    """Return the norm of the gradient before the first step, of one replica or of all shards."""
    norms = [rank.grad_norm or 0.0 for rank in launch.ranks]
    return math.hypot(*norms) if _seen(launch).sharded else norms[0]


def _seen(launch: LaunchRecord) -> ScriptObservations:
    watched = launch.ranks[0].watched
    assert watched is not None, "a usable launch of a script was watched"
    return watched
