"""The reference: redoes a world's step with the plain model, in the world's order.

It cuts the batch as the ranks (or micro-batches) do and adds gradients in that order, so that for
two shards, and for pipelines of any size, the result is equal to the bit on CPU. One process can
take all shards in turn (``step``), or each rank takes its own (``together``).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Dim
from harness.training.context import Loaded, RankContext
from harness.training.data import Batch
from harness.training.rank.rounding import Rounding


class Oracle:
    """A plain model, trained on shards. ``weighted``: samples of all shards count alike.

    Args:
        parts: how often a shard's batch is cut: accumulation steps, or a pipeline's micro-batches.
        scale_last: divide the summed gradient once at the end, as pipeline schedules do, rather
            than each loss.
        order: of the parts, in which their gradients are added; empty = as they are cut.
        rounding: what becomes of a shard's gradients before they are added.
    """

    weighted = True

    def __init__(
        self,
        model: nn.Module,
        ctx: RankContext,
        *,
        parts: int,
        scale_last: bool,
        order: Sequence[int] = (),
        rounding: Rounding | None = None,
    ) -> None:
        self.model = model
        self.ctx = ctx
        self.parts = parts
        self.scale_last = scale_last
        self.order = order or range(parts)
        self.rounding = rounding or Rounding()
        self.optimizer = ctx.optimizer(model.parameters())

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loaded: Loaded,
        ctx: RankContext,
        rounding: Rounding | None = None,
    ) -> Self:
        """The reference that the case's strategy names in its head."""
        supports = loaded.supports
        parts = int(loaded.knobs(ctx.case)[supports.parts]) if supports.parts else 0
        ordered = getattr(loaded.strategy, "order", None)
        ranks = supports.mesh(ctx.case).size(Dim.PP)
        return cls(
            model,
            ctx,
            parts=parts or ctx.case.accumulate,
            scale_last=supports.oracle == "micro_batched",
            order=ordered(loaded.knobs(ctx.case), ranks) if ordered else (),
            rounding=rounding,
        )

    @torch.no_grad()
    def forward(self, shards: Sequence[Batch]) -> float:
        """The mean loss over the shards in rank order; nothing is trained."""
        total = 0.0
        for batch in shards:
            cut = batch.inputs.chunk(self.parts), batch.targets.chunk(self.parts)
            loss = torch.zeros((), device=batch.inputs.device)
            for inputs, targets in zip(*cut, strict=True):
                with self.ctx.forward():
                    loss += self.ctx.loss(self.model(inputs), targets) / len(cut[0])
            total += float(loss)
        return total / len(shards)

    def step(self, shards: Sequence[Batch]) -> float:
        """One optimizer step over the shards in rank order; the mean loss."""
        total: list[Tensor] | None = None
        losses = 0.0
        for batch in shards:
            loss, gradients = self.backward(batch)
            losses += float(loss)
            parts = [gradient / len(shards) for gradient in self.rounding.gradients(gradients)]
            total = (
                parts
                if total is None
                else [tensor + part for tensor, part in zip(total, parts, strict=True)]
            )
        assert total is not None
        self.update(total)
        return losses / len(shards)

    def together(self, batch: Batch) -> float:
        """Trains each rank on its own shard: gradients are exchanged and added in rank order."""
        loss, gradients = self.backward(batch)
        shards = self.ctx.batching.shards
        self.update(added(self.rounding.gradients(gradients), shards))
        losses = [torch.zeros_like(loss) for _ in range(self.ctx.world_size)]
        dist.all_gather(losses, loss)
        return sum(map(float, losses[:shards])) / shards

    def backward(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """A shard's loss, as its rank would state it, and its gradients."""
        self.model.zero_grad(set_to_none=True)
        batching = self.ctx.batching
        parts = self.parts
        inputs, targets = batch.inputs.chunk(parts), batch.targets.chunk(parts)
        losses: list[Tensor] = [torch.empty(0)] * len(inputs)
        for i in self.order:
            scale = 1.0 if self.scale_last else 1.0 / len(inputs)
            if self.weighted and not self.scale_last:
                samples = len(inputs[i]) if len(batch.ids) else 0
                scale = batching.weight(samples, batch.of or batching.global_batch)
            losses[i] = self.descend(inputs[i], targets[i], scale)
        grads = [
            parameter.grad for parameter in self.model.parameters() if parameter.grad is not None
        ]
        if self.ctx.loss_scale != 1.0:  # a power of two: exact
            grads = [grad / self.ctx.loss_scale for grad in grads]
        if self.scale_last:
            return torch.stack(losses).mean(), [grad / len(inputs) for grad in grads]
        total = torch.zeros((), device=losses[0].device)
        for loss in losses:
            total += loss
        return total, grads

    def descend(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """The scaled loss of a part of a batch, its gradients added to the parameters'."""
        with self.ctx.forward():
            loss = self.ctx.loss(self.model(x), y) * scale
        (loss * self.ctx.loss_scale).backward()
        return loss.detach()

    def update(self, gradients: Sequence[Tensor]) -> None:
        """One optimizer step with these gradients."""
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            assert parameter.grad is not None
            yield name, parameter.grad

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()


def relative_error(
    seen: Iterator[tuple[str, Tensor]],
    wanted: dict[str, Tensor],
    origin: dict[str, Tensor] | None = None,
    ulps: int = 0,
) -> float:
    """norm(seen - wanted) / norm(wanted - origin) over all tensors that ``seen`` yields.

    Per-tensor errors mean nothing for zero-initialised biases in bf16, so it is one vector.
    Infinite when nothing was seen: what was not compared is not right. ``ulps`` of a tensor's own
    dtype are no difference: an update smaller than one flips to either side.
    """
    difference = size = 0.0
    compared = 0
    for name, tensor in seen:
        compared += 1
        reference = wanted[name].double()
        off = (tensor.double() - reference).abs()
        if ulps:
            off = (off - ulps * _ulp(reference, tensor.dtype)).clamp(min=0)
        difference += float(off.square().sum())
        start = origin[name].double() if origin is not None else 0.0
        size += float((reference - start).square().sum())
    if not compared:
        return math.inf
    return float(difference**0.5 / size**0.5) if size else float(difference > 0)


def scale(seen: Iterator[tuple[str, Tensor]], wanted: dict[str, Tensor]) -> float:
    """<seen, wanted> / <wanted, wanted> over all tensors: how many times too long ``seen`` is.

    Rounding goes either way and cancels, a wrong factor does not: in bf16 it tells 1 % apart where
    the norm of the difference cannot.
    """
    product = size = 0.0
    for name, tensor in seen:
        reference = wanted[name].double()
        product += float((tensor.double() * reference).sum())
        size += float(reference.square().sum())
    return product / size if size else math.inf


def _ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance from each value to the next one that the dtype has."""
    _, exponent = torch.frexp(values)
    return torch.ldexp(torch.full_like(values, torch.finfo(dtype).eps), exponent - 1)


def snapshot(named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named}


def grad_norm(named: Iterator[tuple[str, Tensor]]) -> float:
    """Euclidean norm over all tensors, in float64."""
    return float(
        sum(
            (tensor.double().square().sum() for _, tensor in named),
            torch.zeros((), dtype=torch.float64),
        )
        ** 0.5
    )


def added(gradients: Sequence[Tensor], shards: int) -> list[Tensor]:
    """The mean of all ranks' gradients, added in rank order: equal bits on every rank.

    Each rank adds one part of them, and hands it to the others.
    """
    if shards == 1:
        return list(gradients)
    flat = torch.cat([(tensor / shards).flatten() for tensor in gradients])
    padded = nn.functional.pad(flat, (0, -len(flat) % shards))
    gathered = torch.empty_like(padded)
    dist.all_to_all_single(gathered, padded)
    mine, *others = gathered.view(shards, -1)
    for other in others:
        mine.add_(other)
    dist.all_gather_into_tensor(padded, mine.contiguous())
    return shaped(padded[: len(flat)], gradients)


def shaped(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat tensor, shaped like these in turn."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]
