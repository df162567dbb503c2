"""The exchange of 1-bit Adam: momentum instead of gradients, as signs in two phases."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training import transports
from harness.training.compressors import onebit
from harness.training.context import RankContext
from harness.training.transports import Knobs, TwoPhase, done

ERROR_BOUND = 1.5
KNOBS = dict(block=1024, feedback=True, momentum=0.9)
CLAIM = "contracts"
#: The optimizer of the paper: Adam whose variance is frozen after ``start`` uncompressed steps.
METHOD = dict(optimizer="frozen_adam", start=16)


class Momentum(TwoPhase):
    """The hook of 1-bit Adam (Tang et al., 2021, Algorithm 1).

    It exchanges the momentum b u + g, where g is the gradient, b is the factor ``momentum``, and u
    is the result of the previous exchange. It returns the exchanged momentum minus b u as the
    gradient. Adam's running mean of this gradient then equals the exchanged momentum, so any
    optimizer can step with it. Because of error feedback, the sum of the returned gradients stays
    close to the sum of the true gradients.
    """

    def __init__(self, ctx: RankContext, knobs: Knobs) -> None:
        codec = onebit.Codec(knobs, transports.generator(ctx))
        super().__init__(ctx, codec, bool(knobs["feedback"]), transports.mean)
        self.momentum = float(knobs["momentum"])
        self.velocity: dict[Tensor, Tensor] = {}

    def heard(self, parameters: list[Tensor], mean: Tensor) -> None:
        """Update the momentum in steps in which uncompressed gradients are exchanged."""
        parts = mean.split([tensor.numel() for tensor in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            before = self.velocity.get(parameter)
            whole = part.float()
            self.velocity[parameter] = (
                whole.clone() if before is None else self.momentum * before + whole
            )

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        parameters = bucket.parameters()
        flat = bucket.buffer()
        before = (
            torch.cat([self._of(tensor) for tensor in parameters])
            .mul_(self.momentum)
            .to(flat.dtype)
        )
        flat.add_(before)
        made: Tensor = super().__call__(bucket).wait()
        for parameter, part in zip(
            parameters, made.split([tensor.numel() for tensor in parameters]), strict=True
        ):
            self.velocity[parameter] = part.float().clone()
        return done(made.sub_(before))

    def _of(self, parameter: Tensor) -> Tensor:
        """Return the flat momentum of a parameter, or zeros before the first step."""
        known = self.velocity.get(parameter)
        return parameter.new_zeros(parameter.numel()).float() if known is None else known


def build(ctx: RankContext, knobs: Knobs) -> Any:
    return Momentum(ctx, knobs)


promise = onebit.promise
