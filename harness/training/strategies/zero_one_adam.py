"""0/1 Adam: local steps over a variance that is seldom fresh; what was moved is agreed in signs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Size, Tensor, nn
from torch.nn import functional

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts, exchanges
from harness.training import transports
from harness.training.compressors import onebit
from harness.training.context import Knobs, RankContext
from harness.training.optimizers import FrozenAdam, is_in, refreshed
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer
from harness.training.transports import all_gather

#: Of one rank, in the order of its parameters.
Gradients: TypeAlias = Sequence[Tensor]

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="simulated",
    beside="ddp",
    initial="broadcast",
    replicas=True,
)
#: ``period``: local steps between two agreements, the authors' constant policy; where the rate
#: falls the paper makes it longer, and the rate of a case stays. ``until``: the steps after each of
#: which all agree, and at which the variance is brought up to date, less and less often by
#: ``kappa``.
KNOBS = dict(period=4, until=16, kappa=16, block=1024)
TWIN = dict(period=2, until=1)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Signs of what was moved, in two phases, every ``period`` steps (Lu et al., 2022).

    Gradients go whole in the steps that bring the variance up to date.
    """
    period = outer.number(knobs, "period")
    until = outer.number(knobs, "until", 0)
    outer.number(knobs, "kappa")
    n = case.world_size
    promise = onebit.promise(
        [Size([sum(parameter.numel() for parameter in model.parameters())])], n, knobs
    )
    signs = traffic.Traffic(
        promise.sent_bytes, promise.payload_bytes, max(promise.payload_bytes.values())
    )
    formula = "2 (N-1)/N (P/8 + 4 P/block)"
    sent = signs if n > 1 else traffic.Traffic()
    return replace(
        outer.expected(case, model, batching, facts, period, sent, formula, states=2),
        until=until,
        casts=n > 2,  # sums of more than two in another order: signs of next to nothing flip
        whole_steps=tuple(refreshed(until, int(knobs["kappa"]))) if n > 1 else (),
        whole_bytes=traffic.all_reduce(outer.payload(model), n).sent,
    )


class Exchange:
    """The mean over all ranks of what each moved, by signs in two phases, both errors kept."""

    def __init__(self, size: int, world: int, block: int) -> None:
        self.codec = onebit.Codec({"block": block}, torch.Generator())
        self.size = size
        self.world = world
        self.part = transports.padded(-(-size // world), block)
        self.owed: Tensor | float = 0.0
        self.owed_of_sums: Tensor | float = 0.0

    def mean(self, moved: Tensor) -> Tensor:
        """(n,) of this rank -> (n,), the same bits on all."""
        short = self.part * self.world - self.size
        wanted = functional.pad(moved, (0, short)).view(self.world, self.part) + self.owed
        outgoing = self.codec.encode(wanted)
        self.owed = wanted - self.codec.decode(outgoing, self.part)
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        sums = transports.mean(self.codec.decode(incoming, self.part))[None] + self.owed_of_sums
        message = self.codec.encode(sums)
        self.owed_of_sums = sums - self.codec.decode(message, self.part)
        every = all_gather(message[0], self.world)
        return self.codec.decode(every, self.part).flatten()[: self.size]


class Moved:
    """One rank's part: how far it went from where all were last, and with which rates."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, knobs: Knobs) -> None:
        self.model = model
        self.optimizer = optimizer
        self.period = int(knobs["period"])
        self.until = int(knobs["until"])
        self.fresh = tuple(refreshed(self.until, int(knobs["kappa"])))
        if isinstance(optimizer, FrozenAdam):
            optimizer.fresh = self.fresh
        self.agreed = outer.vector(model)
        self.rates = 0.0
        self.world = dist.get_world_size()
        self.exchange = Exchange(len(self.agreed), self.world, int(knobs["block"]))
        self.step = 0

    def average(self) -> None:
        """Gradients of all ranks, where they are exchanged whole: all step alike then."""
        if self.world > 1 and is_in(self.step, self.fresh):
            grads = [
                parameter.grad
                for parameter in self.model.parameters()
                if parameter.grad is not None
            ]
            flat = outer.mean(torch.cat([tensor.flatten() for tensor in grads]))
            for grad, part in zip(
                grads, flat.split([tensor.numel() for tensor in grads]), strict=True
            ):
                grad.copy_(part.view_as(grad))

    def after(self, step: int) -> None:
        """Algorithm 1: u is what was moved, without the variance; the mean of u is gone instead."""
        self.step = step + 1
        if self.world == 1:
            return
        self.rates += self.optimizer.param_groups[0]["lr"]
        if not is_in(step, self.fresh):
            if not exchanges(range(step, step + 1), self.period, self.until):
                return
            divisor = divided_by(self.model, self.optimizer)
            moved = (self.agreed - outer.vector(self.model)).float() * divisor
            agreed = self.exchange.mean(moved)
            outer.fill(self.model, self.agreed - agreed / divisor)
            remember(self.model, self.optimizer, agreed / self.rates)
        self.agreed = outer.vector(self.model)
        self.rates = 0.0


def divided_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor | float:
    """The divisor of momentum, flat; 1 under optimizers that freeze no variance."""
    if not isinstance(optimizer, FrozenAdam):
        return 1.0
    return torch.cat([optimizer.divisor(parameter).flatten() for parameter in model.parameters()])


def remember(model: nn.Module, optimizer: torch.optim.Optimizer, momentum: Tensor) -> None:
    """The momentum of all ranks becomes this one's."""
    if not isinstance(optimizer, FrozenAdam):
        return
    parameters = list(model.parameters())
    parts = momentum.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        optimizer.state[parameter]["mean"].copy_(part.view_as(parameter))


class Simulation:
    """All ranks' models in one process: what they lose by signs in two matrices."""

    optimizers: Sequence[torch.optim.Optimizer] = ()

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models = models
        self.knobs = knobs
        self.fresh = set[int]()
        for steps in refreshed(int(knobs["until"]), int(knobs["kappa"])):
            self.fresh |= set(range(*steps))
        self.block = int(knobs["block"])
        self.agreed = outer.vector(models[0])
        world = len(models)
        rows = -(-len(self.agreed) // (world * self.block)) * world
        self.lost = torch.zeros(world, rows, self.block, device=self.agreed.device)
        self.lost_of_sums = torch.zeros(rows, self.block, device=self.agreed.device)
        self.rates = 0.0

    def before(self, step: int, gradients: Sequence[Gradients]) -> Sequence[Gradients]:
        for optimizer in self.optimizers:
            if isinstance(optimizer, FrozenAdam):
                optimizer.fresh = tuple((s, s + 1, 1) for s in sorted(self.fresh))
        if step not in self.fresh or len(self.models) == 1:
            return gradients
        mean = [outer.mean_of(same) for same in zip(*gradients, strict=True)]
        return [[tensor.clone() for tensor in mean] for _ in gradients]

    def after(self, step: int) -> None:
        self.rates += self.optimizers[0].param_groups[0]["lr"]
        until, period = int(self.knobs["until"]), int(self.knobs["period"])
        if len(self.models) > 1 and step not in self.fresh:
            if step >= until and (step + 1) % period:
                return
            self._agree()
        self.agreed = outer.vector(self.models[0])
        self.rates = 0.0

    def _agree(self) -> None:
        workers = list(zip(self.models, self.optimizers, strict=True))
        # Where each rank simulates its own worker alone the others' have nothing to remember.
        stepped = [worker for worker in workers if worker[1].state]
        divisor = divided_by(*stepped[0]) if stepped else 1.0
        size = len(self.agreed)
        wanted = self.lost.clone()
        for rank, model in enumerate(self.models):
            moved = (self.agreed - outer.vector(model)).float() * divisor
            wanted[rank].view(-1)[:size] += moved
        sent = by_sign(wanted)
        self.lost = wanted - sent
        sums = outer.mean_of(list(sent)) + self.lost_of_sums
        signed = by_sign(sums)
        self.lost_of_sums = sums - signed
        mean = signed.view(-1)[:size]
        for model in self.models:
            outer.fill(model, self.agreed - mean / divisor)
        for model, optimizer in stepped:
            remember(model, optimizer, mean / self.rates)


def by_sign(blocks: Tensor) -> Tensor:
    """(.., block): the mean magnitude of each block, with each one's sign."""
    return torch.where(blocks >= 0, 1.0, -1.0) * blocks.abs().mean(-1, keepdim=True)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    rule = Moved(model, trainer.optimizer, knobs)
    trainer.rule = rule
    trainer.average = rule.average
    return trainer
