"""Count the samples of a step of a user's script.

Hooks record the rows of the tensors that reach the model. This module finds out how many samples
these rows are.
"""

from collections.abc import Sequence

import numpy as np

from harness.cases import CaseSpec, Mode
from harness.record import RankRecord, ScriptObservations
from harness.record.store import Samples

#: Two ranks share a batch if at least this share of rows reaches both of them.
SHARED = 0.9
#: Ranks can have this share of their rows in common by chance.
CHANCE = 0.05
#: If fewer than this share of the rows is distinct, rows cannot tell samples apart. They still can
#: if every row occurs equally often.
UNLIKE = 0.5
#: Relative tolerance when the number of rows of a sample is compared with the number of times that
#: each row occurs.
ALIKE = 0.01


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
    came = np.array(sum(came_rows(sample) for sample in samples))[first:]
    looked = np.array(_looked(samples))[first:]
    distinct = [rows(samples, first + step) for step in np.flatnonzero(looked).tolist()]
    share = sum(distinct) / max(1, came[looked].sum()) if looked.any() else 1.0
    counts = np.rint(came * share).astype(int)
    counts[looked] = distinct
    return [int(count) for count in counts]


def came_rows(samples: Samples) -> np.ndarray:
    """Return the number of rows of each step, including repeated ones."""
    assert samples.seen is not None
    counts: np.ndarray = (samples.seen != 0).sum(1) if samples.came is None else samples.came
    return counts


def _looked(samples: Sequence[Samples]) -> np.ndarray:
    """Return for each step whether all its rows were hashed on every rank."""
    whole = [
        (sample.seen != 0).sum(1) == came_rows(sample)
        for sample in samples
        if sample.seen is not None
    ]
    whole_steps: np.ndarray = np.all(whole, axis=0)
    return whole_steps


def changes(samples: Samples) -> bool:
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
    if reason := uncounted(watched, [float(np.median(came_rows(of_rank))) for of_rank in samples]):
        return reason
    last = len(samples[0].marks_s) - 2
    if not any(came_rows(of_rank)[last] for of_rank in samples):
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
    return sum(by_step(samples, cut)) // passes(ranks, samples)


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


def passes(ranks: Sequence[RankRecord], samples: Sequence[Samples]) -> int:
    """Return how often each sample of a step reaches the model.

    It is more than once if the number of rows is a multiple of the number of the loader's samples,
    but only as many rows as samples are distinct (SAM, R-Drop).
    """
    watched = ranks[0].watched
    if watched is None or not watched.drawn:
        return 1
    times = float(np.median(came_rows(samples[0]))) / watched.drawn
    return int(times) if times.is_integer() and abs(times * watched.distinct - 1) < ALIKE else 1
