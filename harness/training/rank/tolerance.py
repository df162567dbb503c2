"""How far a correct training run may be from its reference: as far as rounding can move it.

The reference is trained a few more times with other rounding errors (``rounding.py``). A launch may
be as far from the reference as the farthest of these replicates, times one factor. Differences of a
few units in the last place are never judged. Where rounding alone moves a result by a large
fraction, an incorrect training run may be no farther away. The check then says that nothing was
checked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.cases import CaseSpec, Precision
from harness.record import UNCHECKED, Check, Expected
from harness.training.context import Loaded, RankContext, build_model
from harness.training.data import Batch
from harness.training.rank.oracle import Oracle, Simulated, scale, scale_deviation, snapshot
from harness.training.rank.rounding import OtherRounding

#: Number of replicates.
REPLICATES = 5
#: Factor by which the error of a launch may exceed the largest error of a replicate. Errors of
#: correct launches reach 1.2 times the largest of five replicates
#: (``benchmarks/experiments/honest.py``).
FACTOR = 2.0
#: Errors up to this number of machine epsilons are not judged.
FLOOR = 4.0
#: Largest relative error of a gradient's scale if only the gradients of ranks are rounded. A wrong
#: factor of 1 % is always found. Correct launches have errors of at most 0.4 %.
SCALE = 8e-3
#: The error of a scale is a single random number, and by chance that of all five replicates may be
#: small: two of 20 correct bf16 launches with 8 ranks exceeded twice the largest. The error of a
#: replicate therefore counts as at least this number of standard deviations. With FACTOR, a launch
#: may be five standard deviations away.
DEVIATIONS = 2.5
#: A relative error that rounding alone may cause, and above which nothing counts as checked.
LARGEST = 0.5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a training run that are compared.

    These are the loss and the gradients of the first step, and the parameters after the last step.
    The loss is None on a rank that does not compute it.
    """

    loss: float | None
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]


def train(
    reference: Oracle, steps: Sequence[list[Batch]], seen: Sequence[Sequence[object]] = ()
) -> Outcome:
    """Train a reference on the batches of each step, and return its outcome.

    If each rank has the batches of all shards, it computes all of them. Otherwise it computes its
    own shard, and each step is a collective of all ranks. ``seen`` holds what each rank had
    received from the others in each step, if the strategy depends on that.
    """
    losses = []
    gradients: dict[str, Tensor] = {}
    for number, batches in enumerate(steps):
        if seen and isinstance(reference, Simulated):
            reference.note_seen(seen[number])
        with reference.rounding.choosing():
            losses.append(dense_step(reference, batches))
        gradients = gradients or snapshot(reference.gradients())
    return Outcome(loss=losses[0], gradients=gradients, parameters=snapshot(reference.parameters()))


def dense_step(reference: Oracle, batches: list[Batch]) -> float:
    """Do one step of a reference, and return its mean loss."""
    if len(batches) == reference.ctx.batching.shards:
        return reference.step(batches)
    return reference.together(batches[0])


def replicates(
    loaded: Loaded, case: CaseSpec, ctx: RankContext, expected: Expected, *, ordered: bool
) -> Iterator[Oracle]:
    """Yield references with other rounding errors.

    The outputs of layers are rounded differently if the strategy may compute them differently. In
    less than fp32, one near tie of each choice is decided the other way (``rounding.py``). If
    ranks train separately, sums over ranks also begin with another rank, unless they are
    ``ordered`` by the arrival of messages.
    """
    for number in range(REPLICATES):
        seed = number * ctx.world_size + ctx.rank
        rounding = OtherRounding(
            ctx.device,
            seed=seed,
            coarse=expected.casts,
            tie=None if case.precision is Precision.FP32 else number,
        )
        with ctx.device:
            model = build_model(loaded, rounding.case(case), case.seed)
        if rounds_layers(ctx, expected):
            rounding.watch(model)
        if loaded.supports.oracle != "simulated":
            yield Oracle.of(model, loaded, ctx, rounding)
            continue
        begin = 0 if ordered else (number + 1) % ctx.batching.shards
        yield Simulated(model, loaded, ctx, begin=begin, rounding=rounding)


def rounded_scale(gradients: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return how far rounding may move the scale of a gradient, according to one replicate."""
    off = abs(scale(iter(gradients.items()), dict(wanted)) - 1)
    return max(off, DEVIATIONS * scale_deviation(iter(gradients.items()), dict(wanted)))


def rounds_layers(ctx: RankContext, expected: Expected) -> bool:
    """Return whether the outputs of layers may be rounded differently than in the reference."""
    on_device = ctx.device.type != "cpu"  # its kernels may add in another order
    return ctx.mesh.splits or expected.casts or expected.reorders or on_device


@dataclass(kw_only=True)
class Tolerance:
    """The bounds of the errors of one training run.

    ``exact`` states that nothing is rounded differently than in the reference, so that every bit
    must be equal. ``layers`` states that the outputs of layers may be rounded differently, and not
    only gradients. ``eps`` is the machine epsilon of the values that are rounded. ``outcomes``
    trains the replicates. It is a collective of all ranks, and it is called only if the error of a
    rank exceeds the floor.
    """

    ctx: RankContext
    exact: bool
    eps: float
    layers: bool
    outcomes: Callable[[], list[Outcome]]
    _made: list[Outcome] = field(default_factory=list)

    def check(
        self,
        name: str,
        error: float,
        distance: Callable[[Outcome], float],
        *,
        eps: float | None = None,
        least: float = 0.0,
        most: float = math.inf,
        detail: str = "",
    ) -> Check:
        """Compare an error with the largest ``distance`` of a replicate. This is a collective.

        ``eps`` replaces the machine epsilon. ``least`` is a bound that is always allowed, and
        ``most`` a bound that replicates cannot raise.
        """
        limit = least if self.exact else max(least, FLOOR * (eps or self.eps))
        words = [detail] if detail else []
        if not self.exact and any(self.ctx.gather(not error <= limit)):
            self._made = self._made or self.outcomes()
            farthest = max(max(self.ctx.gather(distance(other))) for other in self._made)
            words.append(f"references with other roundings have an error of {farthest:.2g}")
            by_rounding = min(FACTOR * farthest, most)
            if math.isfinite(by_rounding):  # otherwise no replicate bounds the error
                limit = max(limit, by_rounding)
            if error <= limit and LARGEST < by_rounding == limit:
                words.append(f"{UNCHECKED}: rounding alone moves it as far as an incorrect run")
        return Check(
            name=name, ok=error <= limit, value=error, limit=limit, detail="; ".join(words)
        )


def eps_of(case: CaseSpec, ctx: RankContext, expected: Expected) -> float:
    """Return the machine epsilon of the values of a case that may be rounded differently.

    If layers round as in the reference, only gradients, which have the dtype of the parameters, are
    added in another order.
    """
    narrow = case.precision is Precision.BF16
    if rounds_layers(ctx, expected):
        narrow |= case.precision in (Precision.AUTOCAST, Precision.FP8) or expected.casts
        if case.precision is Precision.FP16:
            return torch.finfo(torch.float16).eps
    return torch.finfo(torch.bfloat16 if narrow else torch.float32).eps
