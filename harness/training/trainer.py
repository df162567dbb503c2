"""The step that most strategies share: accumulate, backward, optimizer."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.cases import Passes
from harness.record import Category, ExecutedModel, ModelFacts
from harness.training.context import RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.tuning import kernels
from harness.training.tuning.scaling import Scaled


class LocalTrainer:
    """Trains ``module`` on this rank's shard.

    ``synchronise(last)`` is called before each micro-batch and says whether its backward is the
    one that communicates; ``average`` after the last one, where gradients are exchanged only then;
    ``whole`` turns a sharded tensor into the full one. ``resumable``: module and optimizer are all
    its state. ``weighted``: samples count alike, whatever a rank's share of them.
    """

    resumable = True
    weighted = True

    def __init__(  # noqa: PLR0913  (what a trainer is built of)
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
        """zero_grad, forward and backward of every micro-batch, optimizer step."""
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
        """The loss of every micro-batch, and nothing that would be needed to go back."""
        micro = self.ctx.batching.micros[self.ctx.shard]
        parts = list(zip(batch.inputs.split(micro), batch.targets.split(micro), strict=True))
        total = torch.zeros((), device=self.ctx.device)
        for i, (inputs, targets) in enumerate(parts):
            with span("forward", payload=i), self.ctx.forward():
                total += self.ctx.loss(self.module(inputs), targets) / len(parts)
        return total

    def clear(self) -> None:
        """Forget the gradients of the step before."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Add a micro-batch's gradients to those that are there."""
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        """Step the optimizer, unless scaled gradients have overflown."""
        self.scaler.step(self.optimizer)

    def own_state(self) -> Mapping[str, Any]:
        """State that this rank alone remembers from step to step, beside module and optimizer."""
        return {"scaler": self.scaler.state()} if self.scaler.enabled else {}

    def remember(self, state: Mapping[str, Any]) -> None:
        """Go on with an ``own_state``."""
        if self.scaler.enabled:
            self.scaler.remember(state["scaler"])

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.named():
            if parameter.grad is not None:  # else it is frozen, or unused, or the gate says so
                yield name, self.whole(parameter.grad.detach())

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.named():
            yield name, self.whole(parameter.detach())

    def ran(self) -> ExecutedModel:
        """The trained module's class and the dtype that its layers returned."""
        return ExecutedModel(
            module=type(self.module).__name__,
            placements=self.placements,
            compute_dtype=",".join(sorted(self.compute_dtype)),
            skipped=tuple(self.scaler.skipped) if self.scaler.enabled else None,
        )


def observe_dtype(module: nn.Module) -> set[str]:
    """Collects the dtypes that linear and convolution layers return, in their first forward.

    Hooks would break a graph: of compiled blocks nothing is seen.
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
    return sum(parameter.numel() for parameter in model.parameters())


def constant(model: nn.Module) -> Collection[str]:
    """The names of parameters and buffers that a model tells DDP to leave alone."""
    names: Collection[str] = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    return names


def trained_bytes(model: nn.Module) -> int:
    """The bytes of the parameters that are not frozen."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def element_bytes(model: nn.Module) -> int:
    return next(model.parameters()).element_size()


def training_bytes(
    elements: float, size: int, facts: ModelFacts, samples: int, *, gradients: bool = False
) -> int:
    """The most that a rank needs, in bytes: where its loss goes backwards, or where it steps.

    At the loss there are weights and two AdamW moments, all that forward has kept, and the loss'
    own temporaries; ``gradients`` says whether theirs are there all the time, as DDP's buckets are.
    At the step activations are gone, gradients are there.
    """
    states = elements * size
    early = facts.copies - 1 if facts.copies > 1 and not gradients else facts.copies
    kept = (facts.activation_bytes_per_sample + facts.loss_bytes_per_sample) * samples
    always = facts.cast_bytes + facts.frozen_bytes
    at_loss = states * early + kept + always
    at_step = states * facts.copies + facts.again_bytes * samples + always
    return int(max(at_loss, at_step))
