"""A compressor whose contraction claim holds at any age: its output beats sending nothing.

``how``: ``honest``; ``drifts`` makes each gradient longer than the previous one; after twenty calls
``biases`` omits vectors, ``layer`` the second tensor, ``frozen`` all but the elements that were
largest at that time, and ``uneven`` weights rank 0's gradient four times as much as the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from harness.training.transports import Promise, done

ERROR_BOUND = 1.0
CLAIM = "contracts"
KNOBS = dict(how="honest")
OLD = 20


def promise(shapes: list[torch.Size], world: int, knobs: Mapping[str, Any]) -> Promise:
    payload = 4.0 * sum(s.numel() for s in shapes)
    return Promise(
        payload_bytes={"all_reduce": payload},
        sent_bytes=2 * (world - 1) / world * payload,
        formula="2 (N-1)/N 4 P",
    )


class Hook:
    def __init__(self, ctx: Any, how: str) -> None:
        self.ctx = ctx
        self.how = how
        self.calls = 0
        self.largest: torch.Tensor | None = None

    def __call__(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.calls += bucket.is_last()
        flat = bucket.buffer()
        old = self.calls > OLD
        for number, gradient in enumerate(bucket.gradients()):
            vector = self.how == "biases" and gradient.dim() == 1
            if old and (vector or (self.how == "layer" and number == 1)):
                gradient.zero_()
        if self.how == "uneven" and old:
            flat.mul_(1.6 if self.ctx.rank == 0 else 0.4)
        flat.div_(self.ctx.world_size)
        dist.all_reduce(flat)
        if self.how == "drifts":
            flat.mul_(1 + 0.002 * self.calls)
        if self.how == "frozen" and old:
            if self.largest is None:
                self.largest = torch.zeros_like(flat)
                self.largest[flat.abs().topk(len(flat) // 2).indices] = 1.0
            flat.mul_(self.largest)
        return done(flat)


def build(ctx: Any, knobs: Mapping[str, Any]) -> Hook:
    return Hook(ctx, str(knobs["how"]))
