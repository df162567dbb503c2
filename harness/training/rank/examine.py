"""Examine a model on this rank's device, before it is compared with a reference.

A correct training run differs from its reference if its model has a property that the reference
does not reproduce. The examination finds such a property and names it, so that the comparison is
not made and the model is not called incorrect. It builds the twin and passes one batch through it
twice.
"""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from harness.base.errors import NotComparableError
from harness.base.programs import PACKAGE
from harness.cases import CaseSpec, Device, Dim
from harness.cases.case import SPLITS
from harness.cases.limits import rounding
from harness.training.context import Loaded, RankContext, build_model, make_batch, own_batch
from harness.training.data import Batch, Sampler, generators, set_seed
from harness.training.describe import compiles_itself
from harness.training.observe.compiling import Compilations
from harness.training.rank.joining import reports_peer
from harness.training.rank.oracle import Buffers, Simulated
from harness.training.trainer import hooked, lost_hook
from harness.training.tuning.tuned import untuned

#: Least number of samples in the batch. Statistics over a batch need two.
SAMPLES = 2
#: Number of characters of torch's message that are quoted.
MESSAGE = 200
#: The generators outside torch from which a model may draw, with a function that reads their state.
OTHER_GENERATORS: dict[str, Callable[[], Any]] = {
    "Python's module random": random.getstate,
    "numpy.random": np.random.get_state,
}


class Pass(NamedTuple):
    """The loss and the gradients of one forward and backward pass, and whether it drew numbers."""

    loss: Tensor
    gradients: dict[str, Tensor]
    draws: bool


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Properties that two passes over one batch showed. A name is empty if there is none.

    ``reassigned`` is a buffer that a pass assigned anew, ``changed`` a frozen parameter that a pass
    changed, and ``other_generator`` a generator outside torch that a pass drew from. ``compiled``
    states that a pass called compiled code although no module is compiled.
    """

    first: Pass
    reassigned: str
    changed: str
    other_generator: str
    compiled: bool
    repeatable: bool


def examine(loaded: Loaded, case: CaseSpec, ctx: RankContext) -> None:
    """Raise NotComparableError if no check supports a property of the case's model."""
    with ctx.device:
        model = build_model(loaded, untuned(case), case.seed)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise NotComparableError(
            f"{lazy[0]} has no shape before the first forward pass (a lazy module): run one forward"
            " pass in build(size)"
        )
    seen = _observe(model, loaded, case, ctx)
    if unsupported := _unsupported(seen, case, ctx):
        raise NotComparableError(unsupported)
    changed = seen.changed
    del model, seen  # the strategy's copy of the model needs their memory
    _wrap(loaded, case, ctx, changed)


def _observe(model: nn.Module, loaded: Loaded, case: CaseSpec, ctx: RankContext) -> Properties:
    """Pass one batch through the model twice, with equal weights, buffers and seeds."""
    samples = torch.arange(max(SAMPLES, ctx.batching.micros[ctx.shard]))
    batch = make_batch(loaded, case, samples, ctx.device)
    states = {name: str(state()) for name, state in OTHER_GENERATORS.items()}
    compilations = Compilations()
    compilations.watch()
    buffers = Buffers(model, of_rank_0=False, frozen=True)
    before = dict(model.named_buffers())
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    with buffers.of(0):
        first = _pass(model, batch, ctx)
    now = model.named_buffers()
    reassigned = [name for name, buffer in now if buffer is not before.get(name, buffer)]
    changed = [name for name, old in frozen.items() if not model.get_parameter(name).equal(old)]
    drew = [name for name, state in OTHER_GENERATORS.items() if str(state()) != states[name]]
    with buffers.of(1):
        second = _pass(model, batch, ctx)
    limit = 0.0 if case.device is Device.CPU else rounding(case)
    return Properties(
        first=first,
        reassigned=next(iter(reassigned), ""),
        changed=next(iter(changed), ""),
        other_generator=next(iter(drew), ""),
        compiled=bool(compilations.spans_ns) and not compiles_itself(model),
        repeatable=_equal(first, second, limit),
    )


def _unsupported(seen: Properties, case: CaseSpec, ctx: RankContext) -> str:
    """Return which property of a model no check supports, and a remedy, or an empty string."""
    sparse = [name for name, gradient in seen.first.gradients.items() if gradient.is_sparse]
    divided = any(ctx.mesh.size(dim) > 1 for dim in (Dim.PP, *SPLITS))
    sentences = {
        f"the forward pass assigns the buffer {seen.reassigned} anew, so that wrappers keep the old"
        " tensor: write it in place, for example with copy_()": bool(seen.reassigned),
        f"the model draws from {seen.other_generator}, but only torch's generators are seeded"
        " before each step: draw with torch.rand": bool(seen.other_generator),
        "the model calls a function that torch.compile made, which rounds differently under each"
        " strategy: compile a module of the model, or use --set compiled=inductor": seen.compiled,
        f"the gradient of {', '.join(sparse[:1])} is sparse: the number of bytes that a rank sends"
        " then depends on its samples, and no closed form states it. Use sparse=False": bool(
            sparse
        ),
        f"the model draws random numbers in its forward pass, which {case.strategy} divides among"
        " ranks: they draw other numbers than one device. Switch the drawing off (dropout 0), or"
        " choose a data parallel strategy": seen.first.draws and divided,
        "two passes over the same batch differ, although weights, buffers and seeds were equal: the"
        " model keeps a state in an attribute, or draws from a generator that it made. Keep the"
        " state in a buffer, and draw from torch's default generator": not seen.repeatable,
    }
    return next((sentence for sentence, applies in sentences.items() if applies), "")


def _wrap(loaded: Loaded, case: CaseSpec, ctx: RankContext, changed: str) -> None:
    """Wrap the model in the strategy, and raise NotComparableError if that loses a part of it.

    ``changed`` is the name of a frozen parameter that a forward pass changes, or empty. This is a
    collective of all ranks.
    """
    plain: list[tuple[nn.Module, dict[str, nn.Parameter]]] = []

    def keep(model: nn.Module) -> None:
        plain.append((model, dict(model.named_parameters())))

    try:
        if loaded.supports.oracle == "simulated":
            with ctx.device:
                Simulated(build_model(loaded, case, case.seed), loaded, ctx)
        trainer = loaded.build(case, ctx, case.seed, keep)
        sampler = Sampler(ctx.batching, steps_per_epoch=2, seed=case.seed)
        trainer.step(own_batch(loaded, ctx, sampler.ids(0, ctx.shard), sampler.of(0)))
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        message = " ".join((str(error) or type(error).__name__).split())[:MESSAGE]
        memory = isinstance(error, torch.OutOfMemoryError)
        if not loaded.ships_strategy or memory or reports_peer(message) or _is_ours(error):
            raise
        raise NotComparableError(f"{case.strategy} cannot train this model: {message}") from error
    ((model, before),) = plain
    after = {id(parameter) for parameter in model.parameters()}
    replaced = {name: weights for name, weights in before.items() if id(weights) not in after}
    if changed in replaced:
        raise NotComparableError(
            f"the forward pass changes the frozen parameter {changed}, but {case.strategy} computes"
            " with a copy of it that is discarded: keep it in a buffer"
        )
    copied = before if loaded.supports.oracle == "simulated" else replaced
    if name := hooked(copied):
        raise lost_hook(name, case.strategy)


def _is_ours(error: BaseException) -> bool:
    """Return whether this package's code raised an error itself, which is then a defect of it."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return Path(innermost.filename).is_relative_to(PACKAGE)


def _pass(model: nn.Module, batch: Batch, ctx: RankContext) -> Pass:
    """Run one forward and backward pass over a batch."""
    set_seed(batch, ctx.case.seed)
    before = [generator.get_state() for generator in generators(ctx.device)]
    model.zero_grad(set_to_none=True)
    with ctx.forward():
        loss = ctx.loss(model(batch.inputs), batch.targets)
    loss.backward()
    after = [generator.get_state() for generator in generators(ctx.device)]
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    draws = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return Pass(loss.detach(), gradients, draws)


def _equal(first: Pass, second: Pass, limit: float) -> bool:
    """Return whether two passes agree up to a relative error, or bit by bit if the limit is 0."""
    if first.gradients.keys() != second.gradients.keys():
        return False
    pairs = [(first.loss, second.loss)]
    pairs += [
        (gradient.to_dense(), second.gradients[name].to_dense())
        for name, gradient in first.gradients.items()
    ]
    return all(
        bool(((a - b).abs().max() <= limit * a.abs().max()) | (a.isnan().any() & b.isnan().any()))
        for a, b in pairs
        if a.numel()
    )
