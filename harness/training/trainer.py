"""The training step that most strategies share: micro-batches, backward, optimizer."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.base.errors import NotComparableError
from harness.cases import Passes
from harness.record import Category, ExecutedModel, ModelFacts
from harness.training.context import RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.tuning import kernels
from harness.training.tuning.scaling import Scaled


class LocalTrainer:
    """A Trainer that trains ``module`` on this rank's shard.

    The step calls ``synchronise(last)`` before each micro-batch; ``last`` is True for the last one,
    whose backward pass exchanges the gradients. If a strategy exchanges gradients after the
    backward pass instead, its function ``average`` is called after the last micro-batch. ``whole``
    returns the full tensor of a sharded one. ``resumable`` states that module and optimizer are the
    trainer's whole state. ``weighted`` states that every sample has the same weight, even if ranks
    have different numbers of samples.
    """

    resumable = True
    weighted = True

    def __init__(  # noqa: PLR0913  (all parts of a trainer)
        self,
        module: nn.Module,
        ctx: RankContext,
        *,
        named: Callable[[], Iterator[tuple[str, nn.Parameter]]] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        synchronise: Callable[[bool], None] = lambda last: None,
        average: Callable[[], None] | None = None,
        whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        placements: tuple[str, ...] = (),
    ) -> None:
        self.module = module
        self.ctx = ctx
        self.named = named or module.named_parameters
        self.synchronise = synchronise
        self.average = average
        self.whole = whole
        self.placements = placements
        self.optimizer = optimizer or ctx.optimizer(parameter for _, parameter in self.named())
        self.scaler = Scaled(ctx.device, ctx.loss_scale)
        self.compute_dtype = observe_dtype(module)

    def step(self, batch: Batch) -> Tensor | None:
        """Run forward and backward of every micro-batch and step the optimizer; return the loss.

        If the case runs forward passes only, call ``forward`` instead.
        """
        if self.ctx.case.phase is Passes.FORWARD:
            return self.forward(batch)
        ctx = self.ctx
        batching = self.ctx.batching
        micro = batching.micros[ctx.shard]
        self.clear()
        total = torch.zeros((), device=ctx.device)
        parts = list(zip(batch.inputs.split(micro), batch.targets.split(micro), strict=True))
        for i, (inputs, targets) in enumerate(parts):
            self.synchronise(i == len(parts) - 1)
            scale = 1.0 / len(parts)
            if self.weighted:
                samples = len(inputs) if len(batch.ids) else 0
                scale = batching.weight(samples, batch.of or batching.global_batch)
            with span("forward", payload=i), ctx.forward():
                loss = ctx.loss(self.module(inputs), targets) * scale
            with span("backward", payload=i):
                self.backward(loss)
            total += loss.detach()
        if self.average is not None:
            with span("average", Category.COMMUNICATION):
                self.average()
        with span("optimizer", Category.OPTIMIZER):
            self.update()
        return total

    @torch.no_grad()
    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss of the micro-batches, computed without gradients."""
        micro = self.ctx.batching.micros[self.ctx.shard]
        parts = list(zip(batch.inputs.split(micro), batch.targets.split(micro), strict=True))
        total = torch.zeros((), device=self.ctx.device)
        for i, (inputs, targets) in enumerate(parts):
            with span("forward", payload=i), self.ctx.forward():
                total += self.ctx.loss(self.module(inputs), targets) / len(parts)
        return total

    def clear(self) -> None:
        """Drop the gradients of the previous step."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Run backward, which adds the gradients of a micro-batch to the accumulated gradients."""
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        """Step the optimizer, unless scaled gradients have overflowed."""
        self.scaler.step(self.optimizer)

    def own_state(self) -> Mapping[str, Any]:
        """Return this rank's state that neither its module nor its optimizer holds."""
        return {"scaler": self.scaler.state()} if self.scaler.enabled else {}

    def remember(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``own_state`` returned."""
        if self.scaler.enabled:
            self.scaler.remember(state["scaler"])

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the unsharded gradients of the last step with their parameter names."""
        for name, parameter in self.named():
            # Frozen and unused parameters have no gradient. A check reports any other parameter
            # that has none.
            if parameter.grad is not None:
                yield name, self.whole(parameter.grad.detach())

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the unsharded parameters with their names."""
        for name, parameter in self.named():
            yield name, self.whole(parameter.detach())

    def ran(self) -> ExecutedModel:
        """Return the class of the trained module and the dtypes that its layers returned."""
        return ExecutedModel(
            module=type(self.module).__name__,
            placements=self.placements,
            compute_dtype=",".join(sorted(self.compute_dtype)),
            skipped=tuple(self.scaler.skipped) if self.scaler.enabled else None,
        )


def observe_dtype(module: nn.Module) -> set[str]:
    """Return a set that collects the output dtypes of linear and convolution layers.

    Hooks fill it in the first forward pass of each layer. Layers in compiled blocks have no hooks,
    because a hook would break the compiled graph.
    """
    seen: set[str] = set()
    inside = {m for block in kernels.compiled_blocks(module) for m in block.modules()}
    for layer in set(module.modules()) - inside:
        if isinstance(layer, nn.Linear | nn.Conv2d):

            def note(_: nn.Module, __: object, output: Tensor) -> None:
                seen.add(str(output.dtype).removeprefix("torch."))

            def once(layer: nn.Module) -> None:
                handle = layer.register_forward_hook(note)
                layer.register_forward_hook(lambda *_: handle.remove())

            once(layer)
    return seen


def num_elements(model: nn.Module) -> int:
    """Return the number of elements of all parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def constant(model: nn.Module) -> Collection[str]:
    """Return the names of the parameters and buffers that a model tells DDP to ignore."""
    names: Collection[str] = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    return names


def hooked(parameters: Mapping[str, nn.Parameter]) -> str:
    """Return the name of a parameter that has a hook on its gradient, or an empty string."""
    with_hook = (
        name
        for name, weights in parameters.items()
        if weights._backward_hooks or weights._post_accumulate_grad_hooks
    )
    return next(with_hook, "")


def lost_hook(name: str, strategy: str) -> NotComparableError:
    """Return the error for a parameter whose hook a strategy, or its reference, loses."""
    return NotComparableError(
        f"{name} has a hook, but {strategy} works on copies or shards of the parameters, which have"
        " none: change the gradient in the loss, or in a torch.autograd.Function"
    )


def parameter_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters."""
    return sum(parameter.nbytes for parameter in model.parameters())


def trained_bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters that are not frozen."""
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def element_bytes(model: nn.Module) -> int:
    """Return the bytes of one element of the parameters.

    Raise NotComparableError if they have several dtypes or complex numbers. Strategies that count
    elements, and not bytes, do not support these.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) > 1 or any(dtype.is_complex for dtype in dtypes):
        named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise NotComparableError(
            f"the parameters are of {named}, but the expected bytes of this strategy count elements"
            " of one real dtype: choose ddp, or give all parameters one dtype"
        )
    return next(model.parameters()).element_size()


def training_bytes(
    elements: float, size: float, facts: ModelFacts, samples: int, *, gradients: bool = False
) -> int:
    """Return the peak memory of a rank in bytes, which occurs at the loss or at the optimizer step.

    At the loss a rank holds the weights, two AdamW moments, all saved activations and the
    temporaries of the loss, but no moments of frozen weights. At the optimizer step the activations
    are freed and all gradients are allocated. ``gradients`` states that gradients are always
    allocated, as in DDP's buckets.
    """
    states = elements * size
    copies = 1 + (facts.copies - 1) * facts.trained
    early = copies - facts.trained if copies > 1 and not gradients else copies
    kept = (facts.activation_bytes_per_sample + facts.loss_bytes_per_sample) * samples
    always = facts.cast_bytes + facts.frozen_bytes
    at_loss = states * early + kept + always
    at_step = states * copies + facts.again_bytes * samples + always
    return int(max(at_loss, at_step))
