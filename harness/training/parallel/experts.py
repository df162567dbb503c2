"""Expert parallelism along ``ep``: ranks hold different experts, and tokens are sent to them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.record import Routed
from harness.training.parallel import norms


class Routing:
    """Counters of how often the router chose each expert, and how many choices were dropped.

    The router chooses ``top`` experts per token. A choice is dropped if the expert is full.
    """

    def __init__(self, experts: int, top: int) -> None:
        self.top = top
        self.asked = torch.zeros(experts, dtype=torch.int64)
        self.dropped = torch.zeros(())

    def note(self, asked: Tensor, dropped: Tensor) -> None:
        """Add the numbers of choices per expert (experts,) and a mask of dropped choices."""
        if asked.device.type == "meta":
            return
        with torch.no_grad():
            if self.asked.device != asked.device:
                self.asked = self.asked.to(asked.device)
                self.dropped = self.dropped.to(asked.device)
            self.asked += asked
            self.dropped += dropped.sum()

    @property
    def noted(self) -> Routed:
        """The counts so far."""
        return Routed(asked=tuple(self.asked.tolist()), dropped=int(self.dropped), top=self.top)


def routings(model: nn.Module) -> Iterator[tuple[str, Routing]]:
    """Yield the name and the counts of every module that routes tokens."""
    for name, module in model.named_modules():
        routing = getattr(module, "routing", None)
        if isinstance(routing, Routing):
            yield name, routing


def of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that hold experts, by name; the model file names them with ``EXPERTS``."""
    named = model.named_modules()
    return {name: m for name, m in named if fnmatch.fnmatchcase(name, str(model.experts))}


def shared_out(experts: nn.Module, group: dist.ProcessGroup) -> None:
    """Keep only this rank's experts, and make the module exchange tokens with the other ranks.

    The module is changed in place. Dimension 0 of its parameters is the expert.
    """
    n = group.size()
    rank = group.rank()
    plain = experts.forward
    for name, parameter in list(experts.named_parameters()):
        chunk = parameter.detach().chunk(n)[rank].clone()
        parameter = nn.Parameter(chunk)
        setattr(parameter, norms.PARTED, group)
        setattr(experts, name, parameter)

    def forward(rooms: Tensor) -> Tensor:
        """Compute the outputs of all experts for the tokens of this rank.

        Input and output have the shape (experts, capacity, d).
        """
        num, room, d = rooms.shape
        sent = _exchanged(rooms.view(n, num // n, room, d), group)
        rows_here = sent.transpose(0, 1).reshape(num // n, n * room, d)
        answers = plain(rows_here).view(num // n, n, room, d).transpose(0, 1)
        return _exchanged(answers.contiguous(), group).view(num, room, d)

    experts.forward = forward


def _exchanged(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the result of a differentiable all-to-all along dimension 0."""
    output: Tensor = _AllToAll.apply(x, group)  # type: ignore[no-untyped-call]
    return output


class _AllToAll(torch.autograd.Function):
    """An all-to-all that sends part i of dimension 0 to rank i; backward returns the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        got = torch.empty_like(x)
        dist.all_to_all_single(got, x.contiguous(), group=group)
        return got

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        given = gradients[0].contiguous()
        received = torch.empty_like(given)
        dist.all_to_all_single(received, given, group=ctx.group)
        return received, None
