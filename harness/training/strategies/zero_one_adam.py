"""0/1 Adam: local steps with a rarely updated variance; ranks average their progress as signs."""

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

#: The gradients of one rank, in the order of its parameters.
Gradients: TypeAlias = Sequence[Tensor]

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="simulated",
    beside="ddp",
    initial="broadcast",
    replicas=True,
)
#: ``period`` is the number of local steps between two exchanges. It is constant: the paper extends
#: it when the learning rate falls, but the rate of a case does not fall. After each of the first
#: ``until`` steps all ranks exchange. Some of these steps update the variance; ``kappa`` determines
#: how quickly they become rare. ``block`` is the number of elements with a common scale.
KNOBS = dict(period=4, until=16, kappa=16, block=1024)
TWIN = dict(period=2, until=1)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect a two-phase exchange of signs every ``period`` steps (Lu et al., 2022).

    Steps that update the variance all-reduce uncompressed gradients instead.
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
        # Sums over more than two ranks depend on the order, which can flip signs of tiny values.
        casts=n > 2,
        whole_steps=tuple(refreshed(until, int(knobs["kappa"]))) if n > 1 else (),
        whole_bytes=traffic.all_reduce(outer.payload(model), n).sent,
    )


class Exchange:
    """Compute the mean of the ranks' vectors, exchanged as signs in two phases.

    In the first phase each rank sends its encoded vector and averages one part of all vectors. In
    the second phase it sends the encoded mean. Error feedback applies to both encodings.
    """

    def __init__(self, size: int, world: int, block: int) -> None:
        self.codec = onebit.Codec({"block": block}, torch.Generator())
        self.size = size
        self.world = world
        self.part = transports.padded(-(-size // world), block)
        self.owed: Tensor | float = 0.0
        self.owed_of_sums: Tensor | float = 0.0

    def mean(self, moved: Tensor) -> Tensor:
        """Return the mean of the ranks' vectors of shape (n,), with the same bits on all ranks.

        This is a collective. ``moved`` is the vector of this rank.
        """
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
    """The rule that a rank applies in and after each step.

    ``agreed`` holds the parameters after the last exchange, and ``rates`` is the sum of the
    learning rates of the steps since that exchange.
    """

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
        """Average gradients over all ranks if this step updates the variance.

        All ranks then make the same update.
        """
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
        """Replace this rank's progress by the mean progress of all ranks (Algorithm 1).

        ``moved`` is the vector u of the paper: the progress since the last exchange, multiplied by
        the divisor to undo Adam's division.
        """
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
    """Return the flat divisor of the momentum, or 1 if the optimizer is not ``FrozenAdam``."""
    if not isinstance(optimizer, FrozenAdam):
        return 1.0
    return torch.cat([optimizer.divisor(parameter).flatten() for parameter in model.parameters()])


def remember(model: nn.Module, optimizer: torch.optim.Optimizer, momentum: Tensor) -> None:
    """Set the optimizer's momentum to ``momentum``, the mean over all ranks."""
    if not isinstance(optimizer, FrozenAdam):
        return
    parameters = list(model.parameters())
    parts = momentum.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        optimizer.state[parameter]["mean"].copy_(part.view_as(parameter))


class Simulation:
    """The reference run, which applies the same rule to the models of all ranks in one process.

    ``lost`` and ``lost_of_sums`` hold the errors of the first and of the second encoding.
    """

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
        # If each rank simulates only its local worker, the other optimizers have no state.
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
    """Replace each element by its sign times the mean magnitude of its block.

    The last dimension of ``blocks`` is the block.
    """
    return torch.where(blocks >= 0, 1.0, -1.0) * blocks.abs().mean(-1, keepdim=True)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    rule = Moved(model, trainer.optimizer, knobs)
    trainer.rule = rule
    trainer.average = rule.average
    return trainer
