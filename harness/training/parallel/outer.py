"""The parts of strategies whose ranks train separate models and exchange parameters only in some
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec
from harness.record import Category, Expected, ModelFacts
from harness.training.context import RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.parallel import traffic
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes


class Rule(Protocol):
    """The rule by which a rank changes its model after each local step.

    A strategy's file also has a class ``Simulation(models, batching, knobs)``, the reference of the
    correctness check. It applies the same rule to the models of all ranks in one process, without
    collectives. If a rule depends on the order in which messages arrive, it records this order in
    ``seen``, and the simulation receives ``seen`` from every rank.
    """

    def after(self, step: int) -> None:
        """Change the model after this step, counted from 0.

        In the steps in which ranks exchange, this is a collective of all ranks.
        """


class OuterTrainer(LocalTrainer):
    """A trainer that takes a step with the local gradient and then applies its rule."""

    resumable = False  # a rule may have further state
    rule: Rule
    count = 0

    def step(self, batch: Batch) -> Tensor | None:
        """Run a local step, apply the rule and return the loss."""
        loss = super().step(batch)
        with span("outer", Category.COMMUNICATION):
            self.rule.after(self.count)
        self.count += 1
        return loss


def trainer(
    model: nn.Module, ctx: RankContext, kind: type[OuterTrainer] = OuterTrainer
) -> OuterTrainer:
    """Broadcast rank 0's model and return a trainer. The caller must set the trainer's rule."""
    if ctx.world_size > 1:
        flat = vector(model)
        dist.broadcast(flat, src=0)
        fill(model, flat)
    return kind(model, ctx, placements=("apart",))


def expected(  # noqa: PLR0913  (each argument is a term of the closed form)
    case: CaseSpec,
    model: nn.Module,
    batching: Batching,
    facts: ModelFacts,
    period: int,
    sent: Traffic,
    formula: str,
    states: int = 0,
) -> Expected:
    """Return the expectation of a case whose ranks exchange in every ``period``-th step.

    ``sent`` is the traffic of one exchange, and ``formula`` its closed form. ``states`` is the
    number of copies of all parameters that the rule keeps. Raise ValueError if the period is below
    1.
    """
    if period < 1:
        raise ValueError(f"the period is {period} steps; expected at least 1")
    elements = num_elements(model)
    size = element_bytes(model)
    return traffic.expected(
        [sent * (1 / period)] * case.world_size,
        largest=sent.largest,
        module=type(model).__name__,
        placements=("apart",),
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(elements, size, facts, batching.largest)
        + states * elements * size,
        formula=f"{formula}, every {period} steps",
        global_batch=batching.global_batch,
        period=period,
    )


def payload(model: nn.Module) -> float:
    """Return the number of bytes of all parameters."""
    return float(num_elements(model) * element_bytes(model))


def vector(model: nn.Module) -> Tensor:
    """Return a copy of all parameters as one flat tensor."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def fill(model: nn.Module, flat: Tensor) -> None:
    """Set all parameters from a flat tensor."""
    start = 0
    for parameter in model.parameters():
        part = flat[start : start + parameter.numel()]
        parameter.detach().copy_(part.view_as(parameter))
        start += parameter.numel()


def mean(flat: Tensor) -> Tensor:
    """Average a vector over all ranks by one all-reduce, in place, and return it."""
    dist.all_reduce(flat)
    return flat.div_(dist.get_world_size())


def mean_of(vectors: Sequence[Tensor]) -> Tensor:
    """Return the mean of these vectors, added in the given order."""
    total = vectors[0].clone()
    for other in vectors[1:]:
        total += other
    return total / len(vectors)


def due(step: int, period: int) -> bool:
    """Return whether ranks exchange after this step, counted from 0."""
    return (step + 1) % period == 0


def number(knobs: Mapping[str, Any], name: str, least: int = 1) -> int:
    """Return the value of an integer knob; raise ValueError if it is below ``least``."""
    value = int(knobs[name])
    if value < least:
        raise ValueError(f"{name} is {value}; expected at least {least}")
    return value
