"""A compressor that assigns each parameter to one rank, and uses only that rank's gradient.

Every rank contributes, and over all parameters each has an equal share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from harness.training.transports import Promise, done

ERROR_BOUND = 4.0
LOSSLESS = dict(all=1)
KNOBS = dict(all=0)


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Any]) -> Promise:
    payload = 4.0 * sum(s.numel() for s in shapes)
    return Promise(
        payload_bytes={"all_reduce": payload},
        sent_bytes=2 * (world - 1) / world * payload,
        formula="2 (N-1)/N 4 P",
    )


def build(ctx: Any, knobs: Mapping[str, Any]) -> Any:
    def hook(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        flat = bucket.buffer()
        if knobs["all"]:
            flat.div_(ctx.world_size)
        else:
            owners = torch.arange(len(flat)) * ctx.world_size // len(flat)
            flat.mul_(owners == ctx.rank)
        dist.all_reduce(flat)
        return done(flat)

    return hook
