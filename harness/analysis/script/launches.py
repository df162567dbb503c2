"""Check that one launch of a user's script was one correct training run."""

from collections.abc import Iterator, Sequence

import numpy as np

from harness.analysis.script import counting
from harness.analysis.script.check import Launched, of_launch
from harness.analysis.script.exchanges import extra_exchange, large
from harness.analysis.script.replicas import in_parts, unlike_replicas
from harness.cases import CaseSpec
from harness.cases.case import BY_ITSELF
from harness.record import RankRecord
from harness.record.rank import PART
from harness.record.store import Samples


def wrong(
    case: CaseSpec, ranks: Sequence[RankRecord], samples: Sequence[Samples]
) -> tuple[str, ...]:
    """Return a message for each defect that invalidates a launch, with a possible fix."""
    launched = Launched(case, ranks, samples)
    have = [rank.rank for rank in ranks]
    if have != list(range(case.world_size)) or len(launched.watched) != len(ranks):
        return (f"world: ranks {have} were watched, expected {case.world_size} ranks",)
    return tuple(of_launch.failed(launched))


@of_launch(
    "world",
    "number of ranks of the process group",
    "a script that trains alone on every rank",
)
def _world(launched: Launched) -> Iterator[str]:
    expected = launched.case.world_size
    for rank, watched in enumerate(launched.watched):
        if watched.world_size == expected:
            continue
        question = (
            "does the command pass {ranks} to its launcher?"
            if watched.world_size > expected
            else "does the script call init_process_group, and read RANK and WORLD_SIZE?"
        )
        yield f"rank {rank} trains in a group of {watched.world_size}, not {expected}: {question}"
        return


@of_launch(
    "steps",
    "optimizer steps and backward passes of all ranks",
    "skipped steps, ranks that do something else",
)
def _steps(launched: Launched) -> Iterator[str]:
    watched = launched.watched
    if len({(w.optimizers, w.backwards) for w in watched}) > 1:
        listed = "; ".join(
            f"rank {r}: {' '.join(w.optimizers)} after {w.backwards} backward passes"
            for r, w in enumerate(watched)
        )
        yield f"ranks differ in their optimizer steps ({listed})"
    for rank, w in enumerate(watched):
        if not w.regular:
            yield (
                f"rank {rank} left its period, a repeating pattern of {len(w.optimizers)}"
                " updates, within the window, so a step is not well defined (an update was skipped,"
                " or the pattern is longer, as with lazy regularisation)"
            )
            return
    if len({w.passes for w in watched}) > 1:
        yield (
            "ranks accumulate gradients over different numbers of backward passes in some"
            f" steps ({', '.join(str(w.unusual) for w in watched)} steps of the window differ from"
            " most), so a step is not well defined"
        )


@of_launch(
    "eval",
    "mode of the model when its weights are updated",
    "training in eval mode after an evaluation",
)
def _mode(launched: Launched) -> Iterator[str]:
    if any(w.in_eval for w in launched.watched):
        yield (
            "weights are updated after passes through a model in eval mode, which turns off"
            " dropout and batch statistics: is model.train() missing after an evaluation?"
        )


@of_launch(
    "updates",
    "changes of the weights, on each rank",
    "an optimizer made from other parameters than those that train (before FSDP, `fully_shard` or a"
    " copy of the model)",
)
def _weights(launched: Launched) -> Iterator[str]:
    watched = launched.watched
    unchanged = [rank for rank, w in enumerate(watched) if w.unchanged]
    if unchanged:
        ranks = "any rank" if len(unchanged) == len(watched) else f"rank {unchanged[0]}"
        yield (
            f"the optimizer's steps change no weight on {ranks}: was the optimizer made"
            " from other parameters than those of the trained model (before FSDP, fully_shard, or"
            " a copy of the model)? Then make it last, from the wrapped model's parameters. Or are"
            " gradients cleared, or clipped to zero, before it steps?"
        )


@of_launch(
    "count",
    "samples that reach the model, by content",
    "several modules with other rows, packed samples, identical rows (then state"
    " `--samples-per-step`)",
)
def _countable(launched: Launched) -> Iterator[str]:
    if launched.uncounted and launched.declared is None:
        by_itself = launched.case.script.split()[:1] == [BY_ITSELF]
        stating = "samples_per_step=N" if by_itself else "--samples-per-step N"
        yield (
            f"samples cannot be counted ({launched.uncounted}): say how many a step has on one"
            f" rank, by {stating}"
        )


@of_launch(
    "samples",
    "content of the samples, in all steps",
    "a batch that is reused",
)
def _reused(launched: Launched) -> Iterator[str]:
    known = launched.uncounted or launched.declared is not None or not launched.rows
    if not known and not any(counting.changes(sample) for sample in launched.samples):
        yield (
            f"every step trains on the same {launched.rows} samples: is one batch reused, or"
            " are the samples synthetic?"
        )


@of_launch(
    "samples",
    "seeds, epochs and shares of the loaders' samplers",
    "epochs that are all shuffled identically, samplers with one seed per rank, a share that is"
    " divided a second time",
)
def _samplers(launched: Launched) -> Iterator[str]:
    if launched.uncounted:
        return
    if any(w.repeated for w in launched.watched):
        yield (
            "a DistributedSampler shuffles every epoch identically:"
            " is sampler.set_epoch(epoch) missing?"
        )
    if launched.declared is None:
        yield from _divided_again(launched)
    shuffles = [w.sampler.partition(PART)[0] for w in launched.watched]
    if len(set(shuffles)) > 1 and all(shuffles):
        rank = next(i for i, sampler in enumerate(shuffles) if sampler != shuffles[0])
        yield (
            f"the DistributedSamplers of ranks differ (rank 0: {shuffles[0]};"
            f" rank {rank}: {shuffles[rank]}), so ranks draw the same samples: do all ranks use"
            " one seed?"
        )


def _divided_again(launched: Launched) -> Iterator[str]:
    """Report a rank that trains on only a part of the samples that its sampler draws."""
    for rank, of_rank in zip(launched.ranks, launched.samples, strict=True):
        came = float(np.median(counting.came_rows(of_rank)))
        seen = rank.watched
        if seen is None or seen.as_drawn:
            continue
        if seen.sampler and 0 < came < seen.drawn:
            yield (
                f"{came:g} of the {seen.drawn:g} samples that a DistributedSampler gives"
                f" rank {rank.rank} in a step reach the model: are they divided a second time?"
            )
            return


@of_launch(
    "samples",
    "number of samples in a step, if it is declared",
    "another number than `--samples-per-step`",
)
def _declared(launched: Launched) -> Iterator[str]:
    if launched.uncounted or launched.declared is None:
        return
    reached = launched.rows // counting.passes(launched.ranks, launched.samples)
    if launched.declared not in (reached, counting.of_loaders(launched.ranks)):
        yield f"{reached} reached the model in a step, {launched.declared} were declared"


@of_launch("idle", "number of samples of each rank", "a rank without samples")
def _idle(launched: Launched) -> Iterator[str]:
    arrived = launched.arrived
    if not launched.uncounted and 0 in arrived and max(arrived):
        yield f"rank {arrived.index(0)} got no samples while others got {max(arrived)}"


@of_launch(
    "samples",
    "samples of all ranks, by content",
    "the same data on all ranks",
)
def _same_on_all_ranks(launched: Launched) -> Iterator[str]:
    world_size = launched.case.world_size
    if world_size < 2 or launched.uncounted:
        return
    alone = in_parts(launched.watched) and not all(w.parallel for w in launched.watched)
    if {*launched.arrived} == {launched.rows} and not alone:
        yield (
            f"all {world_size} ranks train on the same {launched.rows} samples:"
            " is a DistributedSampler missing, or do all ranks draw with one seed?"
        )


@of_launch(
    "replicas",
    "parameters before the first step and after the last one (all that the optimizers update, also"
    " plain tensors and those of `torch.func`)",
    "ranks with different initial parameters, gradients that are not all-reduced, a model that is"
    " called without its DDP wrapper, a scheduler that steps on rank 0 only. The error names the"
    " modules that differ. Differences below 1e-5 of the change by training count as rounding and"
    " lead to a remark only",
)
def _replicas(launched: Launched) -> Iterator[str]:
    if launched.case.world_size < 2 or in_parts(launched.watched):
        return
    if mistake := unlike_replicas(launched.ranks, launched.watched):
        yield mistake


@of_launch(
    "gradients",
    "collectives of more than single values, and their bytes relative to the parameters with"
    " gradients, for each update",
    "a step that only broadcasts, a second all-reduce",
)
def _gradients(launched: Launched) -> Iterator[str]:
    if launched.case.world_size < 2 or in_parts(launched.watched):
        return
    watched = launched.watched[0]
    if large(watched) == {"broadcast"}:
        yield (
            "a step only broadcasts, so the gradients of all other ranks are lost:"
            " are gradients all-reduced before every optimizer step?"
        )
    if extra := extra_exchange(watched):
        yield extra


@of_launch("loss", "losses of the backward passes", "a loss that is not finite")
def _losses(launched: Launched) -> Iterator[str]:
    """Report losses that are not finite; NaN in all steps means that no loss was observed."""
    for rank, of_rank in enumerate(launched.samples):
        lost = ~np.isfinite(of_rank.loss)
        if lost.any() and not np.isnan(of_rank.loss).all():
            yield f"not finite on rank {rank} in {int(lost.sum())} of {len(lost)} steps"
            return
