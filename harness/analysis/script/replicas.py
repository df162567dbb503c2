"""Compare the parameters of the ranks of a user's script before and after its training."""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.analysis.script.exchanges import NONE, SMALL, large
from harness.base.formatting import si
from harness.record import RankRecord, ScriptObservations

#: Replicas differ only by rounding if the difference is less than this share of the change of the
#: parameters in training. In fp32, rounding causes some 1e-7 in each step. One parameter of a
#: million that is not all-reduced causes a larger difference.
ROUNDED = 1e-5
#: Collectives that exchange activations between ranks.
SWAPS = ("all_to_all", "all_gather")
#: Largest number of modules that a message names.
FEW = 3


def in_parts(watched: Sequence[ScriptObservations]) -> bool:
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


def unlike_replicas(ranks: Sequence[RankRecord], watched: Sequence[ScriptObservations]) -> str:
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
    if not large(watched[0]):
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
