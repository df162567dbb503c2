"""Deep gradient compression: top-k by a sampled threshold, with momentum correction."""

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training import transports
from harness.training.context import RankContext
from harness.training.transports import Knobs, Sparse, generator

ERROR_BOUND = 1.0
#: In the first ``warm_up`` steps more entries are sent. Their number falls in four stages.
#: ``clip`` is the largest allowed norm of the gradients added over all ranks; 0 sets no limit.
KNOBS = dict(rho=0.01, momentum=0.9, sampled=0.01, feedback=True, warm_up=0, clip=0.0)
LOSSLESS = dict(rho=1.0, sampled=1.0, momentum=0.0, clip=0.0)
CLAIM = "contracts"
#: The sent entries add up to the gradients only without momentum and without clipping.
TELESCOPES = dict(momentum=0.0, clip=0.0)
#: The correctness check runs only a few steps, so its warm-up must be short.
TWIN = dict(warm_up=2)
#: The optimizer is plain SGD, because this compressor applies momentum itself.
METHOD = dict(optimizer="sgd")
#: A threshold is estimated from at least this many sampled entries.
FEWEST_SAMPLED = 256
#: Fraction of entries that the first stage of the warm-up sends. Stage i sends ``FIRST ** i``.
FIRST = 0.25
STAGES = 4

promise = transports.promise


class Corrected(Sparse):
    """The hook with momentum correction (Lin et al., 2018).

    Entries that are not sent accumulate momentum locally. When an entry is sent, its momentum is
    cleared.
    """

    momentum = 0.0

    def __init__(self, ctx: RankContext, knobs: Knobs) -> None:
        super().__init__(ctx, float(knobs["rho"]), self.sampled, bool(knobs["feedback"]))
        self.share = float(knobs["sampled"])
        self.generator = generator(ctx)
        self.momentum = float(knobs["momentum"])
        self.velocity: dict[Tensor, Tensor] = {}
        self.last_rho = self.rho
        self.warm_up = int(knobs["warm_up"])
        self.clip = float(knobs["clip"])
        self.step = 0

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.rho = self.kept_now()
        if self.clip:
            flat = bucket.buffer()
            # N independent gradients, each of the norm ``most``, add up to the norm ``clip``.
            most = self.clip / self.world**0.5
            flat.mul_((most / flat.norm().clamp(min=1e-30)).clamp(max=1.0))
        self.step += bucket.is_last()
        return super().__call__(bucket)

    def kept_now(self) -> float:
        """Return the fraction of entries sent in this step: 25 %, 6.25 %, .. down to ``rho``."""
        if self.step >= self.warm_up:
            return self.last_rho
        stage = STAGES * self.step // self.warm_up
        return float(max(self.last_rho, FIRST ** (stage + 1)))

    def sampled(self, x: Tensor, k: int) -> Tensor:
        """Return the indices of at most k entries above a threshold.

        The threshold is estimated from a random sample of the entries. If more than k entries
        exceed it, only the k largest are returned.
        """
        magnitude, n = x.abs(), x.numel()
        count = min(n, max(FEWEST_SAMPLED, int(self.share * n)))
        place = torch.randint(n, (count,), generator=self.generator, device=x.device)
        some = magnitude if count == n else magnitude[place]
        least = torch.topk(some, max(1, round(k * count / n)), sorted=True).values[-1]
        places = torch.nonzero(magnitude >= least).flatten()
        return places if len(places) <= k else places[torch.topk(magnitude[places], k).indices]

    def wanted(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        flat = gradient.flatten()
        if self.momentum:
            before = self.velocity.get(parameter)
            flat = flat.clone() if before is None else self.momentum * before + flat
            self.velocity[parameter] = flat
        return super().wanted(parameter, flat)

    def sent(self, parameter: Tensor, wanted: Tensor, index: Tensor) -> None:
        super().sent(parameter, wanted, index)
        if self.momentum:
            self.velocity[parameter].index_fill_(0, index, 0.0)


def build(ctx: RankContext, knobs: Knobs) -> Corrected:
    return Corrected(ctx, knobs)
