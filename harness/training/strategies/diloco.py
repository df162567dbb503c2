"""DiLoCo: local steps, then an outer step with Nesterov momentum along the ranks' mean progress."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer, due
from harness.training.transports import all_gather

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="simulated",
    beside="ddp",
    initial="broadcast",
    replicas=True,
)
KNOBS = dict(period=8, rate=0.7, momentum=0.9, quantised=False)
TWIN = dict(period=2)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect an all-reduce of the change of all parameters (Douillard et al., 2023).

    If ``quantised``, ranks instead all-gather one byte per parameter, and one scale.
    """
    period = outer.number(knobs, "period")
    n = case.world_size
    if knobs["quantised"]:
        elements = sum(parameter.numel() for parameter in model.parameters())
        sent = traffic.all_gather(elements + 4.0, n)
        formula = "(N-1) (P + 4)"
    else:
        sent = traffic.all_reduce(outer.payload(model), n)
        formula = "2 (N-1)/N bytes(P)"
    return outer.expected(case, model, batching, facts, period, sent, formula, states=2)


class Outer:
    """The outer optimizer.

    ``agreed`` holds the parameters after the last outer step, and ``velocity`` is the momentum.
    """

    def __init__(self, start: Tensor, knobs: Knobs) -> None:
        self.agreed = start
        self.velocity = torch.zeros_like(start)
        self.rate = float(knobs["rate"])
        self.momentum = float(knobs["momentum"])

    def step(self, moved: Tensor) -> Tensor:
        """Take a step of SGD with Nesterov momentum and return the new parameters.

        ``moved`` is ``agreed`` minus the mean of the ranks' parameters. It has the sign of a
        gradient.
        """
        self.velocity.mul_(self.momentum).add_(moved)
        self.agreed.sub_(self.rate * (moved + self.momentum * self.velocity))
        return self.agreed


class Deltas:
    """The rule that a rank applies after each step: an outer step every ``period`` local steps."""

    def __init__(self, model: nn.Module, knobs: Knobs) -> None:
        self.model = model
        self.period = int(knobs["period"])
        self.quantised = bool(knobs["quantised"])
        self.outer = Outer(outer.vector(model), knobs)

    def after(self, step: int) -> None:
        if not due(step, self.period):
            return
        moved = self.outer.agreed - outer.vector(self.model)
        world = dist.get_world_size()
        if world > 1:
            moved = self._shared(moved, world) if self.quantised else outer.mean(moved)
        outer.fill(self.model, self.outer.step(moved))

    @staticmethod
    def _shared(moved: Tensor, world: int) -> Tensor:
        """Return the mean of the quantised changes of all ranks, added in rank order."""
        codes, scale = coded(moved)
        message = torch.cat((codes.view(torch.uint8), scale.view(1).view(torch.uint8)))
        return outer.mean_of(
            [decoded(encoded, moved.dtype) for encoded in all_gather(message, world)]
        )


def coded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a vector to int8 codes of shape (n,) and a float32 scale.

    The code 127 stands for the largest magnitude.
    """
    scale = x.abs().max().float().clamp(min=1e-30) / 127
    return (x.float() / scale).round().to(torch.int8), scale


def decoded(message: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode a message of int8 codes followed by their scale."""
    scale = message[-4:].clone().view(torch.float32)
    return (message[:-4].view(torch.int8).float() * scale).to(dtype)


class Simulation:
    """The reference run, which applies the same rule to the models of all ranks in one process."""

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models = models
        self.period = int(knobs["period"])
        self.quantised = bool(knobs["quantised"])
        start = outer.vector(models[0])
        self.agreed = start
        self.velocity = torch.zeros_like(start)
        self.rate = float(knobs["rate"])
        self.momentum = float(knobs["momentum"])

    def after(self, step: int) -> None:
        if not due(step, self.period):
            return
        deltas = [self.agreed - outer.vector(model) for model in self.models]
        if self.quantised and len(deltas) > 1:
            deltas = [
                codes.float().mul(tensor).to(delta)
                for delta in deltas
                for codes, tensor in [coded(delta)]
            ]
        mean = outer.mean_of(deltas)
        self.velocity = self.momentum * self.velocity + mean
        self.agreed = self.agreed - self.rate * (mean + self.momentum * self.velocity)
        for model in self.models:
            outer.fill(model, self.agreed)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Deltas(model, knobs)
    return trainer
