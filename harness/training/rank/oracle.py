"""Single-device references that strategies are compared with.

A reference repeats the steps of a world with the plain model, without any parallel wrapper.
"""

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Dim
from harness.training.context import Loaded, RankContext
from harness.training.data import Batch, generators, set_seed
from harness.training.optimizers import carry_outer
from harness.training.parallel.outer import fill, vector
from harness.training.rank.rounding import Rounding
from harness.training.trainer import constant


class Oracle:
    """A plain model that is trained on the shards of a world in rank order.

    If ``weighted``, each sample has the same weight, whichever shard it is in.

    Args:
        parts: number of parts into which a shard's batch is divided (accumulation steps, or
            micro-batches of a pipeline).
        scale_last: divide the summed gradient once at the end, as pipeline schedules do, instead of
            the loss of each part.
        order: order in which the gradients of the parts are added; empty = the order of the parts.
        rounding: changes a shard's gradients before they are added to those of other shards.
        buffers: "own" if each rank keeps the buffers that its forward passes change, "broadcast"
            if all ranks begin a step with rank 0's buffers, as under DistributedDataParallel.
    """

    weighted = True
    #: Whether each shard has a separate copy of the frozen parameters, because a forward pass may
    #: change them (a momentum teacher). A model that is too large for its device leaves no memory
    #: for these copies.
    keeps_frozen = True

    def __init__(
        self,
        model: nn.Module,
        ctx: RankContext,
        *,
        parts: int,
        scale_last: bool,
        order: Sequence[int] = (),
        rounding: Rounding | None = None,
        buffers: str = "own",
    ) -> None:
        self.model = model
        self.ctx = ctx
        self.parts = parts
        self.scale_last = scale_last
        self.order = order or range(parts)
        self.rounding = rounding or Rounding()
        self.optimizer = ctx.optimizer(model.parameters())
        self.buffers = Buffers(model, of_rank_0=buffers == "broadcast", frozen=self.keeps_frozen)
        self._reached = set[int]()  # indices of the trained parameters that got gradients

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen, in the order of the model."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loaded: Loaded,
        ctx: RankContext,
        rounding: Rounding | None = None,
    ) -> Self:
        """Return the reference that the strategy of the case names in its ``SUPPORTS``."""
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
            buffers=supports.buffers,
        )

    @torch.no_grad()
    def forward(self, shards: Sequence[Batch]) -> float:
        """Return the mean loss over the shards in rank order, without training."""
        total = 0.0
        for batch in shards:
            set_seed(batch, self.ctx.case.seed)
            cut = batch.inputs.chunk(self.parts), batch.targets.chunk(self.parts)
            loss = torch.zeros((), device=batch.inputs.device)
            for inputs, targets in zip(*cut, strict=True):
                with self.ctx.forward():
                    loss += self.ctx.loss(self.model(inputs), targets) / len(cut[0])
            total += float(loss)
        return total / len(shards)

    def step(self, shards: Sequence[Batch]) -> float:
        """Do one optimizer step over the shards in rank order, and return their mean loss."""
        total: list[Tensor] | None = None
        losses = 0.0
        self.begin_step()
        for shard, batch in enumerate(shards):
            with self.buffers.of(shard):
                loss, gradients = self.backward(batch)
            losses += float(loss)
            parts = [gradient / len(shards) for gradient in self.rounding.gradients(gradients)]
            total = (
                parts
                if total is None
                else [tensor + part for tensor, part in zip(total, parts, strict=True)]
            )
        assert total is not None
        self.buffers.end_step()
        self.update(total)
        return losses / len(shards)

    def together(self, batch: Batch) -> float:
        """Do one optimizer step in which each rank computes only its own shard.

        Gradients are exchanged and added in rank order. Return the mean loss of all shards. This is
        a collective of all ranks.
        """
        self.begin_step()
        loss, gradients = self.backward(batch)
        shards = self.ctx.batching.shards
        self.share(shards)
        self.update(added(self.rounding.gradients(gradients), shards))
        losses = [torch.zeros_like(loss) for _ in range(self.ctx.world_size)]
        dist.all_gather(losses, loss)
        return sum(map(float, losses[:shards])) / shards

    def begin_step(self) -> None:
        """Forget which parameters got a gradient in the previous step."""
        self._reached = set()

    def share(self, shards: int) -> None:
        """Exchange the state, other than gradients, that ranks need if each computes one shard.

        This state is the set of parameters that got a gradient on any rank. If buffers are
        broadcast, it also includes the buffers of rank 0.
        """
        if shards == 1:
            return
        reached = torch.tensor([i in self._reached for i in range(len(self.trained))])
        reached = reached.to(device=self.ctx.device, dtype=torch.int32)
        dist.all_reduce(reached, dist.ReduceOp.MAX)
        self._reached = {i for i, flag in enumerate(reached.tolist()) if flag}
        self.buffers.broadcast()

    def backward(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of a shard as its rank would report it, and the gradients of ``trained``.

        A parameter that the loss does not depend on has a gradient of zeros.
        """
        self.model.zero_grad(set_to_none=True)
        set_seed(batch, self.ctx.case.seed)
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
        trained = self.trained
        self._reached |= {i for i, weights in enumerate(trained) if weights.grad is not None}
        grads = [
            torch.zeros_like(weights) if weights.grad is None else weights.grad
            for weights in trained
        ]
        if self.ctx.loss_scale != 1.0:  # a power of two, so the division is exact
            grads = [grad / self.ctx.loss_scale for grad in grads]
        if self.scale_last:
            return torch.stack(losses).mean(), [grad / len(inputs) for grad in grads]
        total = torch.zeros((), device=losses[0].device)
        for loss in losses:
            total += loss
        return total, grads

    def descend(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """Add the gradients of one part of a batch to the parameters, and return its scaled loss.

        ``x`` and ``y`` are the inputs and targets of the part, ``scale`` the factor of its loss.
        """
        with self.ctx.forward():
            loss = self.ctx.loss(self.model(x), y) * scale
        (loss * self.ctx.loss_scale).backward()
        return loss.detach()

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Do one optimizer step with these gradients.

        The optimizer skips a parameter if no shard's loss depends on it.
        """
        for i, (weights, gradient) in enumerate(zip(self.trained, gradients, strict=True)):
            weights.grad = gradient if i in self._reached else None
        self.optimizer.step()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the gradient of each parameter that has one."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the value of each parameter."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()


class Buffers:
    """The tensors that forward passes may change, kept separately for each rank.

    One model represents several ranks here. The tensors are its buffers and, if ``frozen``, its
    frozen parameters. A shard is computed with the tensors of the rank to which the shard belongs.
    With ``of_rank_0``, all shards begin a step with the buffers that rank 0 had at the end of the
    previous step. Tensors that a model tells DDP to ignore are constant, so they are not copied.
    """

    def __init__(self, model: nn.Module, *, of_rank_0: bool, frozen: bool) -> None:
        self._of_rank_0 = of_rank_0
        ignored = constant(model)
        self._buffers = [b for name, b in model.named_buffers() if name not in ignored]
        self._frozen = [p for p in model.parameters() if frozen and not p.requires_grad]
        self._start = self._copy()
        self._begin: dict[int, list[Tensor]] = {}  # of each shard at the beginning of the step
        self._end: dict[int, list[Tensor]] = {}  # of each shard at the end of the step

    @contextlib.contextmanager
    def of(self, shard: int) -> Iterator[None]:
        """Return a context in which the model has the tensors of this shard's rank."""
        self._fill(self._begin.get(shard, self._start))
        yield
        self._end[shard] = self._copy()

    def end_step(self) -> None:
        """End a step, and make its final tensors the initial tensors of the next step."""
        of_rank_0 = self._end[0][: len(self._buffers)]
        self._begin = {
            shard: [*of_rank_0, *kept[len(of_rank_0) :]] if self._of_rank_0 else kept
            for shard, kept in self._end.items()
        }
        self._fill(self._begin[0])

    def broadcast(self) -> None:
        """Broadcast the buffers of rank 0 to all ranks, if the strategy broadcasts buffers."""
        for buffer in self._buffers if self._of_rank_0 else ():
            dist.broadcast(buffer, src=0)

    def _copy(self) -> list[Tensor]:
        """Return copies of the current values."""
        return [tensor.detach().clone() for tensor in (*self._buffers, *self._frozen)]

    def _fill(self, values: Sequence[Tensor]) -> None:
        """Write these values into the model."""
        for tensor, value in zip((*self._buffers, *self._frozen), values, strict=True):
            tensor.detach().copy_(value)


def relative_error(
    seen: Iterator[tuple[str, Tensor]],
    wanted: dict[str, Tensor],
    origin: dict[str, Tensor] | None = None,
    ulps: int = 0,
) -> float:
    """Return norm(seen - wanted) / norm(wanted - origin) over all tensors that ``seen`` yields.

    All tensors form one vector, because per-tensor errors mean nothing for zero-initialised biases
    in bf16. The result is infinite if ``seen`` yields nothing, because a missing comparison must
    not pass. Differences of up to ``ulps`` units in the last place of a tensor's dtype are treated
    as zero, because an update smaller than one unit may be rounded up or down.
    """
    difference = size = 0.0
    compared = 0
    for name, tensor in seen:
        compared += 1
        reference = wide(wanted[name])
        off = (wide(tensor) - reference).abs()
        if ulps:
            off = (off - ulps * _ulp(reference, tensor.dtype.to_real())).clamp(min=0)
        difference += float(off.square().sum())
        start = wide(origin[name]) if origin is not None else 0.0
        size += float((reference - start).square().sum())
    if not compared:
        return math.inf
    return float(difference**0.5 / size**0.5) if size else float(difference > 0)


def scale(seen: Iterator[tuple[str, Tensor]], wanted: dict[str, Tensor]) -> float:
    """Return <seen, wanted> / <wanted, wanted> over all tensors, the scale of ``seen``.

    It is 1 if ``seen`` has the correct length in the direction of ``wanted``. Rounding errors have
    both signs and cancel in this sum, but a wrong factor does not cancel. In bf16 the scale
    therefore detects an error of 1 % in a factor, which the norm of the difference cannot detect.
    """
    product = size = 0.0
    for name, tensor in seen:
        reference = wide(wanted[name])
        product += float((wide(tensor) * reference).sum())
        size += float(reference.square().sum())
    return product / size if size else math.inf


def scale_deviation(seen: Iterator[tuple[str, Tensor]], wanted: dict[str, Tensor]) -> float:
    """Return the standard deviation of ``scale`` if every error keeps its size and draws its sign.

    The errors e of independently rounded elements contribute sqrt(sum (e w)^2) / sum w^2, where w
    are the elements of ``wanted``. A few large elements can dominate this sum, so that the scale
    of one training says little about that of the next.
    """
    squared = size = 0.0
    for name, tensor in seen:
        reference = wide(wanted[name])
        squared += float(((wide(tensor) - reference) * reference).square().sum())
        size += float(reference.square().sum())
    return float(squared**0.5 / size) if size else 0.0


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64; complex numbers become pairs of real ones."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance from each value to the next value that the dtype can represent."""
    _, exponent = torch.frexp(values)
    return torch.ldexp(torch.full_like(values, torch.finfo(dtype).eps), exponent - 1)


def snapshot(named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return copies of these tensors by name."""
    return {name: tensor.detach().clone() for name, tensor in named}


def grad_norm(named: Iterator[tuple[str, Tensor]]) -> float:
    """Return the Euclidean norm over all tensors, computed in float64."""
    return float(
        sum(
            (wide(tensor).square().sum() for _, tensor in named),
            torch.zeros((), dtype=torch.float64),
        )
        ** 0.5
    )


def added(gradients: Sequence[Tensor], shards: int) -> list[Tensor]:
    """Return the mean of all ranks' gradients, with identical bits on every rank.

    Each rank adds one part of the gradients in rank order, and sends the result to all ranks. This
    is a collective of all ranks.
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
    """Return consecutive parts of a flat tensor, with the shapes and dtypes of ``like``.

    The flat tensor has the widest of these dtypes.
    """
    parts = flat.split([tensor.numel() for tensor in like])
    return [
        (part if tensor.is_complex() or not part.is_complex() else part.real)
        .view_as(tensor)
        .to(tensor.dtype)
        for part, tensor in zip(parts, like, strict=True)
    ]


T = TypeVar("T")


class Simulated(Oracle):
    """A reference for strategies whose ranks train separately for some steps.

    It has a model and an optimizer for each rank, and applies the strategy's ``Simulation`` to all
    of them. ``model`` is the model of the rank that runs this code. ``begin`` is the rank with
    which sums over ranks begin. Rounding depends on the order of a sum. Another ``begin`` therefore
    gives another correct training run, if the exchange treats all ranks equally.
    """

    def __init__(
        self,
        model: nn.Module,
        loaded: Loaded,
        ctx: RankContext,
        *,
        begin: int = 0,
        rounding: Rounding | None = None,
    ) -> None:
        parts = ctx.case.accumulate
        super().__init__(model, ctx, parts=parts, scale_last=False, rounding=rounding)
        models = [copy.deepcopy(model) for _ in range(ctx.batching.shards)]
        for worker in models:
            carry_outer(model.parameters(), worker.parameters())
        self.workers = [(module, ctx.optimizer(module.parameters())) for module in models]
        self.weighted = bool(getattr(loaded.strategy, "WEIGHTED", True))
        self.rules = loaded.strategy.Simulation(models, ctx.batching, loaded.knobs(ctx.case))
        if hasattr(self.rules, "optimizers"):
            self.rules.optimizers = [optimizer for _, optimizer in self.workers]
        self.count = 0
        self.begin = begin
        self.place = (ctx.shard - begin) % len(models)
        self.model, self.optimizer = self.workers[self.place]

    def note_seen(self, seen: Sequence[object]) -> None:
        """Tell the simulation what each rank has received from the other ranks so far.

        Only strategies whose result depends on the order in which messages arrive need this.
        """
        if seen[0] is not None:
            self.rules.seen = seen

    def step(self, shards: Sequence[Batch]) -> float:
        """Do a step of every rank's model on the rank's shard, and then simulate their exchange.

        Return the mean loss.
        """
        losses = 0.0
        every = []
        self.begin_step()
        for batch, worker in zip(self._in_order(shards), self.workers, strict=True):
            self.model, self.optimizer = worker
            loss, gradients = self.backward(batch)
            losses += float(loss)
            every.append(list(self.rounding.gradients(gradients)))
        if hasattr(self.rules, "before"):
            every = self.rules.before(self.count, every)
        for gradients, worker in zip(every, self.workers, strict=True):
            self.model, self.optimizer = worker
            self.update(gradients)
        self.rules.after(self.count)
        self.count += 1
        self.model, self.optimizer = self.workers[self.place]
        return losses / len(shards)

    def together(self, batch: Batch) -> float:
        """Do a step in which each rank computes only its own shard.

        All ranks then exchange their exact parameters. Return the mean loss. This is a collective
        of all ranks.
        """
        self.begin_step()
        loss, gradients = self.backward(batch)
        gradients = list(self.rounding.gradients(gradients))
        if hasattr(self.rules, "before"):
            of_all = zip(*(self._from_all(gradient) for gradient in gradients), strict=True)
            gradients = self.rules.before(self.count, list(of_all))[self.place]
        self.update(gradients)
        every = self._from_all(vector(self.model))
        for (model, _), theirs in zip(self.workers, every, strict=True):
            fill(model, theirs)
        self.rules.after(self.count)
        self.count += 1
        losses = self._from_all(loss)
        return sum(map(float, losses)) / len(losses)

    def _from_all(self, gradient: Tensor) -> list[Tensor]:
        """Gather a tensor from every rank, and return them in the order in which sums add them."""
        every = [torch.empty_like(gradient) for _ in self.workers]
        dist.all_gather(every, gradient)
        return self._in_order(every)

    def _in_order(self, by_rank: Sequence[T]) -> list[T]:
        """Change values from rank order to the order in which sums add them: ``begin`` first."""
        return [*by_rank[self.begin :], *by_rank[: self.begin]]


class Streamed(Oracle):
    """A reference for an ``nn.Sequential`` that is too large for its device.

    The model stays on the host, and its blocks are moved to the device one at a time.
    """

    keeps_frozen = False

    def descend(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """Add the gradients of one part of a batch to the parameters, and return its scaled loss.

        The forward pass keeps only the input of each block on the host. The backward pass computes
        each block once more. Parameters and gradients stay on the host between these passes.
        """
        if not isinstance(self.model, nn.Sequential):
            made = type(self.model).__name__
            raise TypeError(
                f"{made} is too large for its device, and it is not an nn.Sequential, whose blocks"
                " could be streamed"
            )
        given = []
        output = x
        drawing = generators(self.ctx.device)
        for block in self.model.children():
            given.append((output.cpu(), [generator.get_state() for generator in drawing]))
            with self._there(block), torch.no_grad(), self.ctx.forward():
                output = block(output)
        output = output.detach().requires_grad_()
        with self.ctx.forward():
            loss = self.ctx.loss(output, y) * scale
        (loss * self.ctx.loss_scale).backward()
        gradient = output.grad
        blocks = reversed(list(self.model.children()))
        for block, (kept, states) in zip(blocks, reversed(given), strict=True):
            for generator, state in zip(drawing, states, strict=True):
                generator.set_state(state)
            inputs = kept.to(self.ctx.device).detach()
            inputs.requires_grad_(inputs.is_floating_point())
            with self._there(block):
                with self.ctx.forward():
                    again = block(inputs)
                again.backward(gradient)
            gradient = inputs.grad
        return loss.detach()

    @contextlib.contextmanager
    def _there(self, block: nn.Module) -> Iterator[None]:
        """Move a block to the device, and move it and its gradients back at the end."""
        block.to(self.ctx.device)
        try:
            yield
        finally:
            block.to("cpu")
