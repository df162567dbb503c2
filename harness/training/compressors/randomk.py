"""Random-k: all ranks draw the same indices, so one all-reduce sends the values only."""

import math
import random
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training.context import RankContext
from harness.training.observe.laps import lap
from harness.training.transports import ErrorFeedback, Knobs, Promise, done, kept, total

ERROR_BOUND = 32.0
#: With ``feedback=False`` values are scaled by n/k. The result is unbiased, but its error is large.
KNOBS = dict(rho=0.1, feedback=True)
LOSSLESS = dict(rho=1.0)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")


def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
    """Return the bytes of an all-reduce with 4 bytes per sent entry."""
    payload = 4.0 * kept(total(shapes), knobs["rho"])
    return Promise(
        payload_bytes={"all_reduce": payload},
        sent_bytes=2 * (world - 1) / world * payload,
        formula="2 (N-1)/N 4 k",
    )


def places(step: int, n: int, k: int, device: torch.device) -> Tensor:
    """Return k different indices below n that depend on the step.

    They are (a i + b) mod n for i < k, where a and b are drawn at random and a is coprime to n. The
    time grows with k only, and torch's global generator is not used.
    """
    drawn = random.Random(step)
    factor = drawn.randrange(n)
    while math.gcd(factor, n) != 1:
        factor = drawn.randrange(n)
    first = drawn.randrange(n)
    return (torch.arange(k, device=device) * factor + first) % n


class Shared:
    """The hook of random-k.

    All ranks draw the same indices, because they are at the same step.
    """

    def __init__(self, ctx: RankContext, knobs: Knobs) -> None:
        self.world = ctx.world_size
        self.rho = float(knobs["rho"])
        self.step = ctx.case.seed
        self.feedback = ErrorFeedback() if knobs["feedback"] else None
        self.claim = CLAIM if knobs["feedback"] else "unbiased"

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat, parameters = bucket.buffer(), bucket.parameters()
        wanted = flat.float()
        if self.feedback is not None:
            pairs = zip(parameters, bucket.gradients(), strict=True)
            wanted = torch.cat([self.feedback.add(p, g) for p, g in pairs]).float()
        with lap("encode"):
            n = len(wanted)
            k = kept(len(wanted), self.rho)
            index = places(self.step, n, k, flat.device)
            values = wanted[index]
            self.step += 1
            if self.feedback is not None:
                left = wanted.index_fill(0, index, 0.0)
                for parameter, part in zip(
                    parameters, left.split([tensor.numel() for tensor in parameters]), strict=True
                ):
                    self.feedback.owe(parameter, part)
        dist.all_reduce(values)
        values /= self.world if self.feedback is not None else self.world * k / n
        return done(flat.zero_().index_copy_(0, index, values.to(flat.dtype)))


def build(ctx: RankContext, knobs: Knobs) -> Shared:
    return Shared(ctx, knobs)
