"""Compressors that send some entries of each parameter: their values, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training.context import RankContext
from harness.training.hooks import ErrorFeedback, Promise, all_gather, done
from harness.training.observe.laps import lap
from harness.training.transports import Knobs

#: Indices of the entries to send of one flat parameter, at most so many; fewer where fewer are due.
Choose: TypeAlias = Callable[[Tensor, int], Tensor]


def kept(elements: int, rho: float) -> int:
    """Entries sent of a parameter: fixed, so that no sizes need exchanging."""
    return max(1, int(rho * elements))


def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
    """8 bytes a kept entry, to every other rank."""
    if sum(shape.numel() for shape in shapes) >= 2**31:
        raise ValueError("int32 indices address 2^31 elements at most")
    if not 0 < knobs["rho"] <= 1:
        raise ValueError(f"rho = {knobs['rho']}: a share above 0, at most 1")
    message = 8.0 * sum(kept(shape.numel(), knobs["rho"]) for shape in shapes)
    return Promise(
        payload_bytes={"all_gather": message}, sent_bytes=(world - 1) * message, formula="(N-1) 8 k"
    )


class Sparse:
    """A hook: values and int32 indices of all parameters of a bucket travel in one message.

    Where fewer entries are chosen than there is room for, the rest is zeros. ``used`` is the share
    of the room that was.
    """

    def __init__(self, ctx: RankContext, rho: float, choose: Choose, feedback: bool) -> None:
        self.world = ctx.world_size
        self.rho = rho
        self.choose = choose
        self.feedback = ErrorFeedback() if feedback else None
        self.used = 0.0

    def wanted(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """The values to send of a parameter, flat."""
        return (
            gradient.flatten() if self.feedback is None else self.feedback.add(parameter, gradient)
        )

    def sent(self, parameter: Tensor, wanted: Tensor, index: Tensor) -> None:
        """Owe all that is not at these places."""
        if self.feedback is not None:
            self.feedback.owe(parameter, wanted.index_fill(0, index, 0.0))

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer()
        indices = []
        values = []
        offset = room = used = 0
        with lap("encode"):
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                wanted = self.wanted(parameter, gradient)
                k = kept(wanted.numel(), self.rho)
                index = self.choose(wanted, k)
                value = wanted[index].float()
                spare = k - len(index)
                self.sent(parameter, wanted, index)
                if spare:
                    index = torch.cat((index, index.new_zeros(spare)))
                    value = torch.cat((value, value.new_zeros(spare)))
                indices.append((index + offset).to(torch.int32))
                values.append(value.view(torch.int32))
                offset = offset + wanted.numel()
                room = room + k
                used = used + k - spare
            message = torch.cat((*indices, *values))
        self.used = used / room
        messages = all_gather(message, self.world).view(self.world, 2, -1)
        with lap("decode"):
            flat.zero_()
            for part in messages:
                # Rank by rank, so that all have the same bits; what is spare adds nothing.
                flat.index_add_(0, part[0].long(), part[1].view(torch.float32).to(flat.dtype))
            return done(flat.div_(self.world))
