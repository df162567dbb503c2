"""Judge a launch of a user's script: was it one correct training run, and on how many samples?"""

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

#: All-reduced bytes divided by the bytes of the parameters: values outside this range are not a
#: single exchange of gradients.
ONCE = (0.45, 1.25)
#: Collectives with fewer bytes carry no gradients, but a loss, a flag or a norm.
SMALL = 1024
#: Two ranks share a batch if at least this share of rows reaches both of them.
SHARED = 0.9
#: A share of common rows up to this is attributed to chance.
CHANCE = 0.05
#: If a smaller share of rows is distinct, and the rest is not repeated equally often, rows do not
#: identify samples.
UNLIKE = 0.5
#: Relative tolerance for the number of rows of a sample being the number of its repetitions.
ALIKE = 0.01
#: Replicas that differ by less than this share of what training has changed differ by rounding. In
#: fp32 rounding causes some 1e-7 a step. A single number that is not all-reduced is at most one of
#: a million.
ROUNDED = 1e-5
#: The count of a collective that was not issued.
NONE = CollectiveCount(count=0, payload_bytes=0)
#: Collectives that exchange activations between ranks.
SWAPS = ("all_to_all", "all_gather")
#: Largest number of modules that a message names.
FEW = 3
#: A rank is late if it needs longer by this share of a step, and at least by this many seconds.
LATE = 0.25
LATE_S = 2e-3


def rows(samples: Sequence[Samples], step: int) -> int:
    """Return the number of samples of one step over all ranks.

    Ranks that see the same rows share one batch (tensor parallelism). This is also so if a rank
    sees a part of another rank's rows. If ranks have other rows in common, each distinct row is one
    sample. There are two exceptions: if only few rows are in common, or if a rank has some rows
    twice, rows are equal by chance, like the states of a game.
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
    """Return whether nearly all rows of one rank are another rank's, with the same multiplicity."""
    of_a, of_b = (dict(zip(*np.unique(x, return_counts=True), strict=True)) for x in (a, b))
    in_both = sum(int(min(count, of_b.get(value, 0))) for value, count in of_a.items())
    return in_both >= SHARED * min(len(a), len(b))


def by_step(samples: Sequence[Samples], first: int = 0) -> list[int]:
    """Return the number of samples over all ranks of every step from the ``first`` on.

    Steps whose rows were only counted are assumed to have the same share of distinct rows as the
    steps whose rows were hashed.
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
    """Return which steps had all rows hashed, on every rank."""
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
    """Return the samples of a step of this world that the user declared; None if there are none."""
    if case.samples_per_step is None:
        return None
    return case.samples_per_step * (case.world_size if case.mode is Mode.WEAK else 1)


def counted(ranks: Sequence[RankRecord], samples: Sequence[Samples]) -> str:
    """Return why samples cannot be counted by their content; empty if they can."""
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
    """Return why the rows that reached the model are not a number of samples; empty if they are.

    The reasons follow from what hooks and loaders saw on each rank. ``came`` is each rank's number
    of rows in a step.
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
    """Return whether each module gets as many rows as loaders hand out samples.

    Examples are two towers, or networks that teach each other.
    """
    return watched.drawn > 0 and all(rows == watched.drawn for rows in watched.roots.values())


def _undrawn(watched: ScriptObservations, came: float) -> str:
    """Return why rows are not samples, judging by the loader, which does not depend on the model.

    Rows are consistent with the loader if they are as many as its samples, a multiple of them
    (several views of each), or this rank's share of what all ranks draw.
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
        " (time first, packed, or a graph?)"
    )


def consumed(
    case: CaseSpec, ranks: Sequence[RankRecord], samples: Sequence[Samples], cut: int
) -> int:
    """Return the number of samples of the kept window.

    The declared number is used if samples cannot be counted, if the loaders hand out as many, or if
    the user accepts the check.
    """
    stated = declared(case)
    known = stated is not None and (stated == of_loaders(ranks) or case.accepts("samples"))
    if known or counted(ranks, samples):
        return (stated or 0) * (len(samples[0].marks_s) - 1 - cut)
    return sum(by_step(samples, cut)) // _passes(ranks, samples)


def of_loaders(ranks: Sequence[RankRecord]) -> float | None:
    """Return the samples of a step as the loaders of all ranks count them.

    None unless a sample consists of several rows on every rank: a training on half of the drawn
    samples has half as many samples.
    """
    watched = [rank.watched for rank in ranks if rank.watched is not None]
    return handed_out(ranks) if all(parts_of_one(w) > 1 for w in watched) else None


def handed_out(ranks: Sequence[RankRecord]) -> float:
    """Return the number of samples that all loaders hand out for a step; 0 if it is unknown."""
    return sum(rank.watched.drawn for rank in ranks if rank.watched is not None)


def came_to_each(ranks: Sequence[RankRecord]) -> int:
    """Return the rows that reach each module of the training, over all ranks.

    0 if the modules of a rank get different numbers of rows.
    """
    rows = [{*rank.watched.roots.values()} for rank in ranks if rank.watched is not None]
    return sum(of_rank.pop() for of_rank in rows) if all(len(x) == 1 for x in rows) else 0


def parts_of_one(watched: ScriptObservations) -> int:
    """Return the number of distinct rows of one sample of the loader: a pair, or several views."""
    rows = sum(watched.roots.values())
    times = rows / watched.drawn if watched.drawn else 1.0
    alike = watched.as_drawn or abs(times * watched.distinct - 1) < ALIKE
    return int(times) if times.is_integer() and not alike else 1


def _passes(ranks: Sequence[RankRecord], samples: Sequence[Samples]) -> int:
    """Return how often each sample of a step reaches the model.

    It is more than once if a multiple of the loader's samples arrives, and the distinct rows are
    only as many as these samples (SAM, R-Drop).
    """
    watched = ranks[0].watched
    if watched is None or not watched.drawn:
        return 1
    times = float(np.median(_came(samples[0]))) / watched.drawn
    return int(times) if times.is_integer() and abs(times * watched.distinct - 1) < ALIKE else 1


def wrong(
    case: CaseSpec, ranks: Sequence[RankRecord], samples: Sequence[Samples]
) -> tuple[str, ...]:
    """Return the defects that invalidate a launch, each with a possible fix."""
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
                f"steps: rank {rank} left its period of {len(w.optimizers)} updates within the"
                " window, so a step is not well defined (an update was skipped, or the period is"
                " longer, as with lazy regularisation)"
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
    """Return the option, or the argument of ``measure_steps``, that declares the samples of a
    step.
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
            yield f"count: {reason}: say how many a step has on one rank, {_stating(case)}"
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
    """Report ranks whose DistributedSamplers differ, and thus do not divide one shuffled data
    set.
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
    """Return a remark if ranks divide different parts of one data set; else empty.

    ``random_split`` without a seed has this effect (in PyTorch's minGPT-ddp, for example). It is no
    ERROR, because steps take equally long.
    """
    parts = [r.watched.sampler.partition(PART)[2] for r in ranks if r.watched is not None]
    if len(set(parts)) < 2 or not all(parts):
        return ""
    return (
        f"ranks divide different parts of one data set ({parts[0]} on rank 0), so some samples are"
        " drawn twice, and others are held out by one rank only: does random_split have a seed?"
    )


def saved_by_several(ranks: Sequence[RankRecord]) -> str:
    """Return a remark on a file that several ranks of one machine write; empty if there is none."""
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
    """Report a rank that trains on a part of the samples that its sampler already assigned to
    it.
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

    If only the exchanges of the ranks indicate this, two more conditions apply. The parts have to
    differ, or to be exchanged by an all-to-all (DLRM's embedding tables). Each rank also has to
    train on the samples of another rank, because a rank that computes a part of the model needs all
    samples.
    """
    if not all(w.cut for w in watched):
        return any(w.sharded for w in watched)
    shared = min(Counter(w.first for w in watched).values()) > 1
    swapped = all("all_to_all" in w.collectives for w in watched)
    return shared and (swapped or len({w.start for w in watched}) > 1)


def _replicas(ranks: Sequence[RankRecord], watched: Sequence[ScriptObservations]) -> Iterator[str]:
    """Report replicas that differ at the start or the end, and steps that exchange only weights.

    Parts that each rank holds for itself may differ.
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
    """Return how replicas differ, with a possible cause; empty if they do not."""
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
    """Return where replicas differ that began identical, with a possible cause."""
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
    if not _large(watched[0]):
        question += (
            " A step all-reduces none: does a call bypass DistributedDataParallel"
            " (model.module(x)), or run within no_sync()?"
        )
    return f"{ended}: {question}"


def own_parts(watched: Sequence[ScriptObservations]) -> list[str]:
    """Return the parts of the model that each rank holds for itself: experts, or classes of Partial
    FC.

    There are two kinds. Either the parts differ at the start while other parts are identical, and
    ranks swap or gather more than single values. Or they differ at the end, and are exchanged
    within the forward passes of their root.
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
    """Return how far replicas differ by rounding alone, as a share of what training has changed.

    0 if they are identical, differ by more than rounding, or have no sums to compare. All replicas
    have the same gradients. Each device rounds what its optimizer computes from them in its own way
    (norms, products; cores of two kinds).
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
    """Return, for each module, whether training has changed it on any rank; the others are
    frozen.
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

    Empty if none differs, if all ``trained`` modules differ (unless ``partly``: the modules are a
    part of the model), or if the names do not match the digests.
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

    The message is empty otherwise. A step of several updates, as of a GAN, needs an exchange for
    each.
    """
    times = _exchanges(watched)
    if times <= ONCE[1] * _updates(watched) or _in_each_pass(watched) or watched.cleared:
        return ""
    return (
        f"gradients: {times:.2f} times the parameters are all-reduced in {_step_of(watched)}:"
        " is there a second all-reduce in addition to DistributedDataParallel's?"
    )


def accumulated(watched: ScriptObservations) -> str:
    """Return a remark if gradients are exchanged in each of several accumulated passes; else empty.

    The result is correct, but the exchanges cost time.
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
    """Return a remark if the gradients of passes over different samples are discarded; else empty.

    SAM, and methods that inspect gradients of several tasks, repeat passes over the same samples.
    """
    passes = watched.backwards
    if not watched.cleared or passes <= _updates(watched) or watched.distinct * passes < 1.01:
        return ""
    return (
        f"gradients are cleared between the {passes} backward passes of {_step_of(watched)}, each"
        " over other samples: is zero_grad() in the wrong place?"
    )


def may_hide_another(watched: ScriptObservations) -> bool:
    """Return whether all-reduces in forward passes may hide a second exchange of gradients.

    The backward pass may reduce as many bytes again, or other code may reduce gradients twice.
    """
    return _exchanges(watched, of_statistics=1) > ONCE[1] * _updates(watched)


def _exchanges(watched: ScriptObservations, of_statistics: int = 2) -> float:
    """Return how often a step's all-reduces carry the gradients at least; 0 if they carry none.

    All-reduces in a forward pass carry statistics (Barlow Twins, batch norm). They are subtracted,
    and so are as many bytes again, because the backward pass may reduce them.
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
    """Yield remarks on exchanges beyond need if parameters are sharded; they cost time but are
    correct.

    Gradients have to be reduced and scattered once a step, and shards gathered twice a pass.
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
                f" passes, {wanted} are needed: {reason}"
            )


def late(
    ahead_s: Sequence[float], queued_s: Sequence[float], step_s: float, busy: float = 0.0
) -> tuple[int, float] | None:
    """Return the rank that the others wait for, and the seconds in a step; None if there is none.

    Ranks meet within the backward pass, so a delay of one rank before it delays all ranks.

    Args:
        ahead_s: each rank's seconds in a step up to its backward pass.
        queued_s: each rank's seconds in a step that its threads wait for a core; the machine causes
            them, not the script.
        busy: the share of the cores that other processes used. Half of this share of a step is
            added to the limit, because other processes also occupy caches.
    """
    if len(ahead_s) < 2 or not all(ahead_s):
        return None
    own_s = np.maximum(np.subtract(ahead_s, queued_s), 0.0)
    slowest = int(own_s.argmax())
    more_s = float(own_s[slowest] - np.median(np.delete(own_s, slowest)))
    return (slowest, more_s) if more_s >= max(LATE_S, (LATE + busy / 2) * step_s) else None


def _losses(samples: Sequence[Samples]) -> Iterator[str]:
    """Report losses that are not finite; NaN in all steps means that no loss was seen."""
    for rank, of_rank in enumerate(samples):
        lost = ~np.isfinite(of_rank.loss)
        if lost.any() and not np.isnan(of_rank.loss).all():
            yield f"loss: not finite on rank {rank} in {int(lost.sum())} of {len(lost)} steps"
            return


#: A period must be repeated this often, over at least this share of the observed cycles; the first
#: cycles may differ.
REPEATS = 3
SHARE = 0.75


def period(words: Sequence[Hashable]) -> int | None:
    """Return the smallest p such that ``words`` ends in repetitions of length p; None if there is
    none.
    """
    for length in range(1, len(words) // REPEATS + 1):
        begun = len(words)  # index at which the repetitions begin
        while begun > length and words[begun - 1] == words[begun - 1 - length]:
            begun -= 1
        alike = len(words) - max(0, begun - length)
        if alike >= REPEATS * length and alike >= SHARE * len(words):
            return length
    return None
