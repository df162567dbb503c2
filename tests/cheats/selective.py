"""A compressor that is dense for twelve calls, and returns less than it should afterwards.

``how``: ``honest``; ``lazy`` returns zeros; ``negated`` the negated gradient; ``leader`` rank 0's
gradient only; ``absent`` omits the last rank. The bytes sent stay the same, and all ranks receive
the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from harness.training.transports import Promise, done

ERROR_BOUND = 2.0
KNOBS = dict(how="honest")
LOSSLESS = dict(how="honest")
CLAIM = "contracts"
FIRST = 12


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Any]) -> Promise:
    payload = 4.0 * sum(s.numel() for s in shapes)
    return Promise(
        payload_bytes={"all_reduce": payload},
        sent_bytes=2 * (world - 1) / world * payload,
        formula="2 (N-1)/N 4 P",
    )


def build(ctx: Any, knobs: Mapping[str, Any]) -> Any:
    calls = 0

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls
        calls += 1
        how = knobs["how"] if calls > FIRST else "honest"
        flat = bucket.buffer()
        kept = {"leader": 1, "absent": ctx.world_size - 1}.get(how, ctx.world_size)
        if ctx.rank >= kept:
            flat.zero_()
        dist.all_reduce(flat)
        flat.div_(kept)
        return done(flat.mul_({"lazy": 0.0, "negated": -1.0}.get(how, 1.0)))

    return hook
