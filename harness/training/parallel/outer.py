"""Ranks that train models of their own, and agree every so many steps."""

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
    """The rule by which a rank changes its model after each of its steps.

    A strategy's file also has the class ``Simulation(models, batching, knobs)``: the same of all
    ranks' models at once, in one process and without collectives, which is the oracle. A rule that
    depends on what has come in has ``seen``, from which its simulation is told every rank's.
    """

    def after(self, step: int) -> None:
        """Called after the ``step``-th step (from 0); a collective of all ranks where it talks."""


class OuterTrainer(LocalTrainer):
    """Steps on its own gradient, then does what its rule says."""

    resumable = False  # a rule may keep a state of its own
    rule: Rule
    count = 0

    def step(self, batch: Batch) -> Tensor | None:
        """One local step, and maybe an outer one."""
        loss = super().step(batch)
        with span("outer", Category.COMMUNICATION):
            self.rule.after(self.count)
        self.count += 1
        return loss


def trainer(
    model: nn.Module, ctx: RankContext, kind: type[OuterTrainer] = OuterTrainer
) -> OuterTrainer:
    """The model of rank 0 on all ranks, trained apart; its rule is still to be set."""
    if ctx.world_size > 1:
        flat = vector(model)
        dist.broadcast(flat, src=0)
        fill(model, flat)
    return kind(model, ctx, placements=("apart",))


def expected(  # noqa: PLR0913  (each a term of the closed form)
    case: CaseSpec,
    model: nn.Module,
    batching: Batching,
    facts: ModelFacts,
    period: int,
    sent: Traffic,
    formula: str,
    states: int = 0,
) -> Expected:
    """The expectation of a case whose ranks send this in every ``period``-th step.

    ``states``: copies of all parameters that its rule keeps.
    """
    if period < 1:
        raise ValueError(f"a period of {period} steps is none: at least 1")
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
    """Bytes of all parameters."""
    return float(num_elements(model) * element_bytes(model))


def vector(model: nn.Module) -> Tensor:
    """All parameters, flat; a copy."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def fill(model: nn.Module, flat: Tensor) -> None:
    """Set all parameters from a flat tensor."""
    start = 0
    for parameter in model.parameters():
        part = flat[start : start + parameter.numel()]
        parameter.detach().copy_(part.view_as(parameter))
        start += parameter.numel()


def mean(flat: Tensor) -> Tensor:
    """The mean of all ranks' vectors, by one all-reduce."""
    dist.all_reduce(flat)
    return flat.div_(dist.get_world_size())


def mean_of(vectors: Sequence[Tensor]) -> Tensor:
    """The mean of these vectors, added in order."""
    total = vectors[0].clone()
    for other in vectors[1:]:
        total += other
    return total / len(vectors)


def due(step: int, period: int) -> bool:
    """Whether ranks talk after this step."""
    return (step + 1) % period == 0


def number(knobs: Mapping[str, Any], name: str, least: int = 1) -> int:
    """A knob that counts; ValueError below ``least``."""
    value = int(knobs[name])
    if value < least:
        raise ValueError(f"{name} = {value}: at least {least}")
    return value
