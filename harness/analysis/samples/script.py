"""Check that a launch of a user's script was one correct training run, and count its samples.

Hooks record the rows of the tensors that reach the model. This module finds out how many samples
these rows are.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from harness.base.formatting import si
from harness.cases import CaseSpec, Mode
from harness.cases.case import BY_ITSELF
from harness.record import CollectiveCount, RankRecord, ScriptObservations
from harness.record.rank import PART
from harness.record.store import Samples

#: Range of the all-reduced bytes divided by the bytes of the parameters, if gradients are exchanged
#: once.
ONCE = (0.45, 1.25)
#: Collectives with fewer bytes do not carry gradients. They carry a loss, a flag or a norm.
SMALL = 1024
#: Two ranks share a batch if at least this share of rows reaches both of them.
SHARED = 0.9
#: Ranks can have this share of their rows in common by chance.
CHANCE = 0.05
#: Rows do not identify samples if fewer than this share of them is distinct, unless every row
#: occurs equally often.
UNLIKE = 0.5
#: Relative tolerance when the number of rows of a sample is compared with the number of times that
#: each row occurs.
ALIKE = 0.01
#: Replicas differ only by rounding if the difference is less than this share of the change of the
#: parameters in training. In fp32, rounding causes some 1e-7 in each step. One parameter of a
#: million that is not all-reduced causes a larger difference.
ROUNDED = 1e-5
#: The count of a collective that was not issued.
NONE = CollectiveCount(count=0, payload_bytes=0)
#: Collectives that exchange activations between ranks.
SWAPS = ("all_to_all", "all_gather")
#: Largest number of modules that a message names.
FEW = 3
#: A rank is late if it takes longer than the other ranks by the share ``LATE`` of a step, and by
#: ``LATE_S`` seconds or more.
LATE = 0.25
LATE_S = 2e-3


def rows(samples: Sequence[Samples], step: int) -> int:
    """Return the number of samples of one step over all ranks.

    Ranks with the same rows use a common batch (tensor parallelism). The same holds if the rows of
    one rank are a part of the rows of another. If ranks have only some rows in common, each
    distinct row is one sample. Rows can also be equal by chance, like the states of a game. This is
    assumed if only few rows are in common, or if a rank has some rows twice.
    """
    of_ranks = [x.seen[step][x.seen[step] != 0] for x in samples if x.seen is not None]
    every = np.concatenate(of_ranks)
    num_unlike = len(np.unique(every))
    none_twice = all(len(np.unique(here)) == len(here) for here in of_ranks)
    if none_twice and len(every) - num_unlike > CHANCE * len(every):
        return num_unlike
    batches: list[np.ndarray] = []
    for here in of_ranks:
        shared = next((i for i, other in enumerate(batches) if _is_shared(here, other)), None)
        if shared is None:
            batches.append(here)
        elif len(here) > len(batches[shared]):
            batches[shared] = here
    return sum(map(len, batches))


def _is_shared(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether nearly all rows of one rank also occur on the other, as often as there."""
    of_a, of_b = (dict(zip(*np.unique(x, return_counts=True), strict=True)) for x in (a, b))
    in_both = sum(int(min(count, of_b.get(value, 0))) for value, count in of_a.items())
    return in_both >= SHARED * min(len(a), len(b))


def by_step(samples: Sequence[Samples], first: int = 0) -> list[int]:
    """Return the number of samples of each step over all ranks, beginning with step ``first``.

    In some steps rows were only counted, not hashed. These steps are assumed to have the same share
    of distinct rows as the steps with hashed rows.
    """
    came = np.array(sum(_came(sample) for sample in samples))[first:]
    looked = np.array(_looked(samples))[first:]
    distinct = [rows(samples, first + step) for step in np.flatnonzero(looked).tolist()]
    share = sum(distinct) / max(1, came[looked].sum()) if looked.any() else 1.0
    counts = np.rint(came * share).astype(int)
    counts[looked] = distinct
    return [int(count) for count in counts]


def _came(samples: Samples) -> np.ndarray:
    """Return the number of rows of each step, including repeated ones."""
    assert samples.seen is not None
    counts: np.ndarray = (samples.seen != 0).sum(1) if samples.came is None else samples.came
    return counts


def _looked(samples: Sequence[Samples]) -> np.ndarray:
    """Return for each step whether all its rows were hashed on every rank."""
    whole = [
        (sample.seen != 0).sum(1) == _came(sample) for sample in samples if sample.seen is not None
    ]
    whole_steps: np.ndarray = np.all(whole, axis=0)
    return whole_steps


def _changes(samples: Samples) -> bool:
    """Return whether the samples differ between steps."""
    assert samples.seen is not None
    looked = samples.seen[_looked([samples])]
    return bool((looked != looked[0]).any())


def declared(case: CaseSpec) -> int | None:
    """Return the number of samples in a step of this world as declared by the user, or None."""
    if case.samples_per_step is None:
        return None
    return case.samples_per_step * (case.world_size if case.mode is Mode.WEAK else 1)


def counted(ranks: Sequence[RankRecord], samples: Sequence[Samples]) -> str:
    """Return why samples cannot be counted by their content, or an empty string if they can."""
    watched = [rank.watched for rank in ranks if rank.watched is not None]
    if reason := uncounted(watched, [float(np.median(_came(of_rank))) for of_rank in samples]):
        return reason
    last = len(samples[0].marks_s) - 2
    if not any(_came(of_rank)[last] for of_rank in samples):
        return (
            "in the last step no samples reach the modules that trained in the first steps (were"
            " other modules unfrozen in between? Then use a longer --warm-up)"
        )
    for of_rank in samples:
        assert of_rank.seen is not None
        here = of_rank.seen[last][of_rank.seen[last] != 0]
        _, times = np.unique(here, return_counts=True)
        if len(here) > 1 and len(times) == 1:
            return "all rows are identical"
        if len(times) < UNLIKE * len(here) and times.min() < times.max():
            return (
                f"only {len(times)} of {len(here)} rows are distinct, so rows do not identify"
                " samples"
            )
    return ""


def uncounted(watched: Sequence[ScriptObservations], came: Sequence[float]) -> str:
    """Return why the rows that reached the model are not samples, or an empty string if they are.

    The reasons follow from the observations of hooks and loaders on each rank. ``came`` is each
    rank's number of rows in a step.
    """
    if all(not w.roots for w in watched):
        return "no module with parameters is called with samples"
    several = next((w.roots for w in watched if len(w.roots) > 1 and not _all_as_drawn(w)), None)
    if several is not None:
        listed = ", ".join(f"{name.partition(':')[2]} {n}" for name, n in several.items())
        return f"several modules are called with different rows ({listed} in a step)"
    if unclear := next((w.unclear for w in watched if w.unclear), ""):
        return unclear
    return next(filter(None, map(_undrawn, watched, came)), "")


def _all_as_drawn(watched: ScriptObservations) -> bool:
    """Return whether each module gets as many rows as the loaders hand out samples.

    Examples are models with two towers, and networks that teach each other.
    """
    return watched.drawn > 0 and all(rows == watched.drawn for rows in watched.roots.values())


def _undrawn(watched: ScriptObservations, came: float) -> str:
    """Return why rows are not samples according to the loader, or an empty string.

    The number of rows is consistent with the loader if it equals the number of its samples, or a
    multiple of it (several views of each sample). It is also consistent if the loader draws the
    samples of several ranks, and the rows are this rank's part of them.
    """
    drawn = watched.drawn
    if not came or not drawn or watched.as_drawn or came % drawn == 0:
        return ""
    ranks = drawn / came
    if ranks.is_integer() and watched.world_size % ranks == 0:
        return ""
    rows = "1 row reaches" if came == 1 else f"{came:g} rows reach"
    return (
        f"{rows} the model in a step for which its loader hands out {drawn:g} samples"
        " (is time the first dimension, are samples packed, or are they graphs?)"
    )


def consumed(
    case: CaseSpec, ranks: Sequence[RankRecord], samples: Sequence[Samples], cut: int
) -> int:
    """Return the number of samples of the kept window.

    The declared number is used if samples cannot be counted, if the loaders hand out the declared
    number, or if the user accepts a failure of the check ``samples``.
    """
    stated = declared(case)
    known = stated is not None and (stated == of_loaders(ranks) or case.accepts("samples"))
    if known or counted(ranks, samples):
        return (stated or 0) * (len(samples[0].marks_s) - 1 - cut)
    return sum(by_step(samples, cut)) // _passes(ranks, samples)


def of_loaders(ranks: Sequence[RankRecord]) -> float | None:
    """Return the number of samples in a step according to the loaders of all ranks, or None.

    It is None unless each sample consists of several rows on every rank. Otherwise the loaders may
    draw more samples than the training uses.
    """
    watched = [rank.watched for rank in ranks if rank.watched is not None]
    return handed_out(ranks) if all(parts_of_one(w) > 1 for w in watched) else None


def handed_out(ranks: Sequence[RankRecord]) -> float:
    """Return the number of samples that all loaders hand out for a step; 0 if it is unknown."""
    return sum(rank.watched.drawn for rank in ranks if rank.watched is not None)


def came_to_each(ranks: Sequence[RankRecord]) -> int:
    """Return the number of rows that reach each module of the training, summed over ranks.

    Return 0 if the modules of a rank get different numbers of rows.
    """
    rows = [{*rank.watched.roots.values()} for rank in ranks if rank.watched is not None]
    return sum(of_rank.pop() for of_rank in rows) if all(len(x) == 1 for x in rows) else 0


def parts_of_one(watched: ScriptObservations) -> int:
    """Return the number of distinct rows that reach the model for one sample of the loader.

    It is more than 1 if a sample is a pair or consists of several views.
    """
    rows = sum(watched.roots.values())
    times = rows / watched.drawn if watched.drawn else 1.0
    alike = watched.as_drawn or abs(times * watched.distinct - 1) < ALIKE
    return int(times) if times.is_integer() and not alike else 1


def _passes(ranks: Sequence[RankRecord], samples: Sequence[Samples]) -> int:
    """Return how often each sample of a step reaches the model.

    It is more than once if the number of rows is a multiple of the number of the loader's samples,
    but only as many rows as samples are distinct (SAM, R-Drop).
    """
    watched = ranks[0].watched
    if watched is None or not watched.drawn:
        return 1
    times = float(np.median(_came(samples[0]))) / watched.drawn
    return int(times) if times.is_integer() and abs(times * watched.distinct - 1) < ALIKE else 1


def wrong(
    case: CaseSpec, ranks: Sequence[RankRecord], samples: Sequence[Samples]
) -> tuple[str, ...]:
    """Return a message for each defect that invalidates a launch, with a possible fix."""
    watched = [rank.watched for rank in ranks if rank.watched is not None]
    if [rank.rank for rank in ranks] != list(range(case.world_size)) or len(watched) != len(ranks):
        have = [rank.rank for rank in ranks]
        return (f"world: ranks {have} were watched, expected {case.world_size} ranks",)
    return (
        *_world(case, watched),
        *_steps(watched),
        *_mode(watched),
        *_weights(watched),
        *_samples(case, ranks, samples),
        *_training(case, ranks, watched),
        *_losses(samples),
    )


def _world(case: CaseSpec, watched: Sequence[ScriptObservations]) -> Iterator[str]:
    for rank, w in enumerate(watched):
        if w.world_size > case.world_size:
            yield (
                f"world: rank {rank} trains in a group of {w.world_size}, not {case.world_size}:"
                " does the command pass {ranks} to its launcher?"
            )
            return
        if w.world_size != case.world_size:
            yield (
                f"world: rank {rank} trains in a group of {w.world_size}, not {case.world_size}:"
                " does the script call init_process_group, and read RANK and WORLD_SIZE?"
            )
            return


def _steps(watched: Sequence[ScriptObservations]) -> Iterator[str]:
    if len({(w.optimizers, w.backwards) for w in watched}) > 1:
        listed = "; ".join(
            f"rank {r}: {' '.join(w.optimizers)} after {w.backwards} backward passes"
            for r, w in enumerate(watched)
        )
        yield f"steps: ranks differ in their optimizer steps ({listed})"
    for rank, w in enumerate(watched):
        if not w.regular:
            yield (
                f"steps: rank {rank} left its period, a repeating pattern of {len(w.optimizers)}"
                " updates, within the window, so a step is not well defined (an update was skipped,"
                " or the pattern is longer, as with lazy regularisation)"
            )
            return
    if len({w.passes for w in watched}) > 1:
        yield (
            "steps: ranks accumulate gradients over different numbers of backward passes in some"
            f" steps ({', '.join(str(w.unusual) for w in watched)} steps of the window differ from"
            " most), so a step is not well defined"
        )


def _mode(watched: Sequence[ScriptObservations]) -> Iterator[str]:
    """Report weights that are trained in eval mode."""
    if any(w.in_eval for w in watched):
        yield (
            "eval: weights are updated after passes through a model in eval mode, which turns off"
            " dropout and batch statistics: is model.train() missing after an evaluation?"
        )


def _weights(watched: Sequence[ScriptObservations]) -> Iterator[str]:
    """Report ranks on which the training changes no weight."""
    unchanged = [rank for rank, w in enumerate(watched) if w.unchanged]
    if unchanged:
        ranks = "any rank" if len(unchanged) == len(watched) else f"rank {unchanged[0]}"
        yield (
            f"updates: the optimizer's steps change no weight on {ranks}: was the optimizer made"
            " from other parameters than those of the trained model (before FSDP, fully_shard, or"
            " a copy of the model)? Then make it last, from the wrapped model's parameters. Or are"
            " gradients cleared, or clipped to zero, before it steps?"
        )


def _stating(case: CaseSpec) -> str:
    """Return the text with which the user declares the number of samples in a step.

    It is a command-line option, or an argument of ``measure_steps``.
    """
    by_itself = case.script.split()[:1] == [BY_ITSELF]
    return "samples_per_step=N" if by_itself else "--samples-per-step N"


def _samples(
    case: CaseSpec, ranks: Sequence[RankRecord], samples: Sequence[Samples]
) -> Iterator[str]:
    stated = declared(case)
    reason = counted(ranks, samples)
    if reason:
        if stated is None:
            yield (
                f"count: samples cannot be counted ({reason}): say how many a step has on one rank,"
                f" by {_stating(case)}"
            )
        return
    last = len(samples[0].marks_s) - 2
    num_rows = rows(samples, last)
    if stated is None and num_rows and not any(_changes(sample) for sample in samples):
        yield (
            f"samples: every step trains on the same {num_rows} samples: is one batch reused, or"
            " are the samples synthetic?"
        )
    if any(rank.watched.repeated for rank in ranks if rank.watched is not None):
        yield (
            "samples: a DistributedSampler shuffles every epoch identically:"
            " is sampler.set_epoch(epoch) missing?"
        )
    if stated is None:
        yield from _shared_again(ranks, samples)
    yield from _samplers(ranks)
    arrived = [int((sample.seen[last] != 0).sum()) for sample in samples if sample.seen is not None]
    reached = num_rows // _passes(ranks, samples)
    if stated is not None and stated not in (reached, of_loaders(ranks)):
        yield f"samples: {reached} reached the model in a step, {stated} were declared"
    if 0 in arrived and max(arrived):
        yield f"idle: rank {arrived.index(0)} got no samples while others got {max(arrived)}"
    watched = [rank.watched for rank in ranks if rank.watched is not None]
    alone = _in_parts(watched) and not all(w.parallel for w in watched)
    if case.world_size > 1 and num_rows == max(arrived) and min(arrived) == num_rows and not alone:
        yield (
            f"samples: all {case.world_size} ranks train on the same {num_rows} samples:"
            " is a DistributedSampler missing, or do all ranks draw with one seed?"
        )


def _samplers(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Report ranks whose DistributedSamplers differ.

    Such samplers do not divide one shuffled data set.
    """
    samplers = [rank.watched.sampler for rank in ranks if rank.watched is not None]
    shuffles = [sampler.partition(PART)[0] for sampler in samplers]
    if len(set(shuffles)) > 1 and all(shuffles):
        rank = next(i for i, sampler in enumerate(shuffles) if sampler != shuffles[0])
        yield (
            f"samples: the DistributedSamplers of ranks differ (rank 0: {shuffles[0]};"
            f" rank {rank}: {shuffles[rank]}), so ranks draw the same samples: do all ranks use"
            " one seed?"
        )


def unlike_parts(ranks: Sequence[RankRecord]) -> str:
    """Return a remark if ranks divide different parts of one data set, else an empty string.

    ``random_split`` without a seed has this effect (in PyTorch's minGPT-ddp, for example). It is
    not an ERROR, because it does not change the time of a step.
    """
    parts = [r.watched.sampler.partition(PART)[2] for r in ranks if r.watched is not None]
    if len(set(parts)) < 2 or not all(parts):
        return ""
    return (
        f"ranks divide different parts of one data set ({parts[0]} on rank 0), so some samples are"
        " drawn twice, and others are held out by one rank only: does random_split have a seed?"
    )


def saved_by_several(ranks: Sequence[RankRecord]) -> str:
    """Return a remark on a file that several ranks of one machine write, or an empty string."""
    writers: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        for name in rank.watched.saved if rank.watched is not None else ():
            writers.setdefault((rank.host, name), []).append(rank.rank)
    shared = {name: by for (_, name), by in writers.items() if len(by) > 1}
    if not shared:
        return ""
    name, by = next(iter(shared.items()))
    return (
        f"ranks {', '.join(map(str, by[:FEW]))} all write the file {name}: is `if rank == 0:`"
        " missing?"
    )


def _shared_again(ranks: Sequence[RankRecord], samples: Sequence[Samples]) -> Iterator[str]:
    """Report a rank that trains on only a part of the samples that its DistributedSampler draws.

    The samples are then divided between ranks twice.
    """
    for rank, of_rank in zip(ranks, samples, strict=True):
        came = float(np.median(_came(of_rank)))
        seen = rank.watched
        if seen is None or seen.as_drawn:
            continue
        if seen.sampler and 0 < came < seen.drawn:
            yield (
                f"samples: {came:g} of the {seen.drawn:g} samples that a DistributedSampler gives"
                f" rank {rank.rank} in a step reach the model: are they divided a second time?"
            )
            return


def _training(
    case: CaseSpec, ranks: Sequence[RankRecord], watched: Sequence[ScriptObservations]
) -> Iterator[str]:
    """Report replicas that diverge, and gradients that are not exchanged exactly once."""
    if case.world_size < 2 or _in_parts(watched):
        return
    yield from _replicas(ranks, watched)
    if extra := extra_exchange(watched[0]):
        yield extra


def _in_parts(watched: Sequence[ScriptObservations]) -> bool:
    """Return whether ranks hold parts of one model.

    If only the exchanges within forward passes indicate this, two more conditions must be met.
    First, the parameters of ranks differ at the start, or ranks exchange data by an all-to-all
    (DLRM's embedding tables). Second, each rank trains on the same samples as some other rank,
    because a rank that computes a part of the model needs all samples.
    """
    if not all(w.cut for w in watched):
        return any(w.sharded for w in watched)
    shared = min(Counter(w.first for w in watched).values()) > 1
    swapped = all("all_to_all" in w.collectives for w in watched)
    return shared and (swapped or len({w.start for w in watched}) > 1)


def _replicas(ranks: Sequence[RankRecord], watched: Sequence[ScriptObservations]) -> Iterator[str]:
    """Report replicas that differ at the start or the end, and steps that exchange only weights.

    Rank-specific parts of the model may differ (``own_parts``).
    """
    if mistake := _unlike_replicas(ranks, watched):
        yield f"replicas: {mistake}"
    if _large(watched[0]) == {"broadcast"}:
        yield (
            "gradients: a step only broadcasts, so the gradients of all other ranks are lost:"
            " are gradients all-reduced before every optimizer step?"
        )


def _large(watched: ScriptObservations) -> set[str]:
    """Return the collectives of a step that carry more than single values."""
    kinds = watched.collectives.items()
    return {name for name, issued in kinds if issued.payload_bytes >= SMALL}


def _unlike_replicas(ranks: Sequence[RankRecord], watched: Sequence[ScriptObservations]) -> str:
    """Return how replicas differ, with a possible cause, or an empty string if they do not."""
    names = watched[0].modules
    if of_own := own_parts(watched):
        alike = [name not in of_own for name in names]
        ended = [list(itertools.compress(w.ended, alike)) for w in watched]
        where = _where(list(itertools.compress(names, alike)), ended, partly=True)
        return where and (
            f"ranks ended with different parameters{where}, in addition to rank-specific parts:"
            " are gradients all-reduced before every optimizer step?"
        )
    began_apart = len({w.start for w in watched}) > 1
    ended_apart = len({rank.replica for rank in ranks}) > 1 and not by_rounding(watched)
    if not began_apart and not ended_apart:
        return ""
    sizes = [w.parameter_bytes for w in watched]
    if len(set(sizes)) > 1:
        odd = next(rank for rank, size in enumerate(sizes) if size != sizes[0])
        return (
            f"ranks train models of different sizes ({si(sizes[0], 'B')} on rank 0,"
            f" {si(sizes[odd], 'B')} on rank {odd}), which cannot be compared"
        )
    if began_apart and not any(w.collectives for w in watched):
        return (
            "ranks exchange nothing in a step, and start from different parameters: is"
            " DistributedDataParallel missing, or disabled?"
        )
    if began_apart:
        where = _where(names, [w.began for w in watched])
        return (
            f"ranks start from different parameters{where}: set one seed on all of them, or let"
            " DistributedDataParallel copy rank 0's"
        )
    return _ended_apart(watched)


def _ended_apart(watched: Sequence[ScriptObservations]) -> str:
    """Return a sentence on replicas that began identical and ended different.

    It names the modules that differ, and a possible cause.
    """
    of_module = _where(watched[0].modules, [w.ended for w in watched], trained=_trained(watched))
    ended = f"ranks ended with different parameters{of_module}"
    odd = next((rank for rank, w in enumerate(watched) if w.rates != watched[0].rates), 0)
    if odd:
        return (
            f"{ended}: learning rates differ, {_rates(watched[0])} on rank 0 and"
            f" {_rates(watched[odd])} on rank {odd}: does a scheduler step on some ranks only?"
        )
    question = "does DistributedDataParallel, or your gradient exchange, include it?"
    if of_module:
        return f"{ended}: {question}"
    num_beside = {len(w.loose) for w in watched}
    if len(num_beside) == 1 and len({w.loose for w in watched}) > 1:
        (number,) = num_beside
        what = f"{number} trained parameters" if number > 1 else "a trained parameter"
        return f"ranks ended with different values of {what} that no called module has: {question}"
    question = "are gradients all-reduced before every optimizer step?"
    if any(w.replaced for w in watched):
        return (
            f"{ended}: parameters were replaced after DistributedDataParallel was made, which"
            " exchanges the first ones only: change the model before it is wrapped"
        )
    if not _large(watched[0]):
        question += (
            " A step all-reduces no gradients: does a call bypass DistributedDataParallel"
            " (model.module(x)), or run within no_sync()?"
        )
    return f"{ended}: {question}"


def own_parts(watched: Sequence[ScriptObservations]) -> list[str]:
    """Return the names of the rank-specific parts of the model.

    Each rank has different parameters in such a part, for example different experts, or different
    classes of Partial FC. There are two kinds of such parts. The first kind differs between ranks
    at the start, and ranks exchange activations by an all-to-all or all-gather. The second kind
    differs at the end, and ranks exchange data within the forward passes of the root module that
    contains the part.
    """
    names = watched[0].modules
    if {len(w.began) for w in watched} | {len(w.ended) for w in watched} != {len(names)}:
        return []
    swap = all(
        max(w.collectives.get(name, NONE).payload_bytes for name in SWAPS) >= SMALL for w in watched
    )
    began = _unlike(names, [w.began for w in watched]) if swap else []
    ended = _unlike(names, [w.ended for w in watched])
    exchanging = [name for name in ended if name.partition(".")[0] in watched[0].exchanging]
    of_own = [name for name in names if name in began or name in exchanging]
    return of_own if len(of_own) < len(names) else []


def _unlike(names: Sequence[str], bits: Sequence[Sequence[str]]) -> list[str]:
    """Return the names whose digests differ between ranks."""
    columns = zip(names, zip(*bits, strict=True), strict=True)
    return [name for name, of_ranks in columns if len(set(of_ranks)) > 1]


def by_rounding(watched: Sequence[ScriptObservations]) -> float:
    """Return the difference of replicas if rounding explains it, relative to the training's change.

    Return 0 if the replicas are identical, differ by more than rounding, or have no sums to
    compare. All replicas have the same gradients. However, devices can round the optimizer's
    computations (norms, products) differently, for example on cores of two kinds.
    """
    before = np.array(watched[0].sums_before)
    after = [np.array(w.sums_after) for w in watched]
    if not len(before) or {len(sums) for sums in after} != {len(before)}:
        return 0.0
    changed = float(np.linalg.norm(after[0] - before))
    apart = max(float(np.linalg.norm(sums - after[0])) for sums in after)
    return apart / changed if changed and 0 < apart <= ROUNDED * changed else 0.0


def _rates(watched: ScriptObservations) -> str:
    """Return the first few distinct learning rates as text."""
    return ", ".join(f"{rate:.3g}" for rate in list(dict.fromkeys(watched.rates))[:FEW])


def _trained(watched: Sequence[ScriptObservations]) -> list[bool]:
    """Return for each module whether training has changed it on any rank.

    Modules without a change are frozen.
    """
    pairs = (zip(w.began, w.ended, strict=False) for w in watched)
    return [
        any(of_ranks) for of_ranks in zip(*([a != b for a, b in p] for p in pairs), strict=False)
    ]


def _where(
    modules: Sequence[str],
    bits: Sequence[Sequence[str]],
    trained: Sequence[bool] = (),
    *,
    partly: bool = False,
) -> str:
    """Return the names of the modules whose ``bits`` differ between ranks, as a part of a sentence.

    Return an empty string if none differs, or if the names do not match the digests. Also return an
    empty string if all ``trained`` modules differ, except with ``partly``, which says that the
    modules are only a part of the model.
    """
    if {len(of_rank) for of_rank in bits} != {len(modules)}:
        return ""
    unlike = _unlike(modules, bits)
    alike = (sum(trained) if len(trained) == len(modules) else len(modules)) - len(unlike)
    if not unlike or not (alike or partly):
        return ""
    listed = ", ".join(unlike[:FEW])
    more = f" and {len(unlike) - FEW} more" if len(unlike) > FEW else ""
    same = f"the other {alike} modules are equal" if alike > 1 else "the other module is equal"
    return f" in {listed}{more}" + (f" ({same})" if alike else "")


def extra_exchange(watched: ScriptObservations) -> str:
    """Return an error message if gradients are exchanged more often than weights are updated.

    Return an empty string otherwise. A step with several updates, for example of a GAN, needs one
    exchange for each update.
    """
    times = _exchanges(watched)
    if times <= ONCE[1] * _updates(watched) or _in_each_pass(watched) or watched.cleared:
        return ""
    return (
        f"gradients: {times:.2f} times the parameters are all-reduced in {_step_of(watched)}:"
        " is there a second all-reduce in addition to DistributedDataParallel's?"
    )


def accumulated(watched: ScriptObservations) -> str:
    """Return a remark if gradients are exchanged in each of several accumulated backward passes.

    The result is correct, but the exchanges cost time. Return an empty string otherwise.
    """
    if not _in_each_pass(watched):
        return ""
    passes = watched.backwards
    second = ", or is there a second all-reduce" if passes == 2 * _updates(watched) else ""
    return (
        f"{_exchanges(watched):.2f} times the parameters are all-reduced in {_step_of(watched)}, in"
        f" each of {passes} backward passes: is no_sync() missing while gradients"
        f" accumulate{second}?"
    )


def lost(watched: ScriptObservations) -> str:
    """Return a remark if gradients of some of the samples are discarded, else an empty string.

    Methods that repeat passes over the same samples are not reported. Examples are SAM, and methods
    that inspect the gradients of several tasks.
    """
    passes = watched.backwards
    if not watched.cleared or passes <= _updates(watched) or watched.distinct * passes < 1.01:
        return ""
    return (
        f"gradients are cleared between the {passes} backward passes of {_step_of(watched)}, each"
        " over different samples: is zero_grad() in the wrong place?"
    )


def may_hide_another(watched: ScriptObservations) -> bool:
    """Return whether a second exchange of gradients may go unnoticed.

    If forward passes all-reduce, the additional all-reduced bytes of a step have two possible
    causes. The backward pass may repeat the all-reduces of the forward pass, or gradients may be
    exchanged twice.
    """
    return _exchanges(watched, of_statistics=1) > ONCE[1] * _updates(watched)


def _exchanges(watched: ScriptObservations, of_statistics: int = 2) -> float:
    """Return a lower limit of how often a step all-reduces the gradients; 0 if it does not.

    All-reduces in a forward pass carry statistics (Barlow Twins, batch norm), and the backward pass
    may all-reduce the same number of bytes again. ``of_statistics`` times the bytes of the forward
    pass are therefore subtracted.
    """
    reduced = watched.collectives.get("all_reduce")
    whole = watched.trained_bytes or watched.parameter_bytes
    if reduced is None or reduced.payload_bytes < SMALL or not whole:
        return 0.0
    return max(0, reduced.payload_bytes - of_statistics * watched.reduced) / whole


def _updates(watched: ScriptObservations) -> int:
    return max(1, len(watched.optimizers))


def _in_each_pass(watched: ScriptObservations) -> bool:
    passes = watched.backwards
    if watched.cleared:
        return False
    times = _exchanges(watched)
    once_a_pass = abs(times - passes) < 0.25 * passes
    return times > ONCE[1] * _updates(watched) and passes > _updates(watched) and once_a_pass


def _step_of(watched: ScriptObservations) -> str:
    updates = _updates(watched)
    return "a step" if updates == 1 else f"a step of {updates} updates"


def shards(watched: ScriptObservations) -> Iterator[str]:
    """Yield remarks on unnecessary exchanges of sharded parameters.

    Such exchanges cost time but are correct. Gradients have to be reduced and scattered once in a
    step, and shards have to be gathered twice for each backward pass.
    """
    passes = watched.backwards
    of_all = watched.parameter_bytes
    trained = watched.trained_bytes or of_all
    several = "set_requires_gradient_sync(False) while gradients accumulate?"
    twice = "is a block wrapped or called twice?"
    for name, whole, parts, wanted, reason in (
        ("reduce_scatter", trained, 1, 1, several),
        ("all_gather", of_all, watched.world_size, 2 * passes, twice),
    ):
        issued = watched.collectives.get(name)
        times = issued.payload_bytes * parts / whole if issued is not None and whole else 0.0
        if times > ONCE[1] * wanted:
            yield (
                f"{name} moves the parameters {times:.3g} times in a step of {passes} backward"
                f" passes, but {wanted} times are sufficient: {reason}"
            )


def late(
    ahead_s: Sequence[float], queued_s: Sequence[float], step_s: float, busy: float = 0.0
) -> tuple[int, float] | None:
    """Return the rank for which the others wait, and its delay in s per step, or None.

    Ranks exchange data within the backward pass, so a delay of one rank before that pass delays all
    ranks.

    Args:
        ahead_s: each rank's time in a step up to its backward pass, in s.
        queued_s: each rank's time in a step in which its threads wait for a core, in s. It is
            subtracted, because it is caused by the machine and not by the script.
        step_s: the time of a step in s.
        busy: the share of the cores that other processes used. The limit is increased by half of
            this share of a step, because other processes also occupy caches.
    """
    if len(ahead_s) < 2 or not all(ahead_s):
        return None
    own_s = np.maximum(np.subtract(ahead_s, queued_s), 0.0)
    slowest = int(own_s.argmax())
    more_s = float(own_s[slowest] - np.median(np.delete(own_s, slowest)))
    return (slowest, more_s) if more_s >= max(LATE_S, (LATE + busy / 2) * step_s) else None


def _losses(samples: Sequence[Samples]) -> Iterator[str]:
    """Report losses that are not finite; NaN in all steps means that no loss was observed."""
    for rank, of_rank in enumerate(samples):
        lost = ~np.isfinite(of_rank.loss)
        if lost.any() and not np.isnan(of_rank.loss).all():
            yield f"loss: not finite on rank {rank} in {int(lost.sum())} of {len(lost)} steps"
            return


#: A period (a repeating pattern of updates) is accepted only if it occurs ``REPEATS`` times or
#: more. Its repetitions must cover at least the share ``SHARE`` of the observed updates. The first
#: updates may differ.
REPEATS = 3
SHARE = 0.75


def period(words: Sequence[Hashable]) -> int | None:
    """Return the length of the shortest sequence that repeats at the end of ``words``, or None."""
    for length in range(1, len(words) // REPEATS + 1):
        begun = len(words)  # index at which the repetitions begin
        while begun > length and words[begun - 1] == words[begun - 1 - length]:
            begun -= 1
        alike = len(words) - max(0, begun - length)
        if alike >= REPEATS * length and alike >= SHARE * len(words):
            return length
    return None
