"""All-reduce in fp16: half the bytes, no error feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from harness.codec import Json
from harness.compressors.codec import Hook, Promise, cast_all_reduce, cast_promise
from harness.worker.context import RankContext

ERROR_BOUND = 2e-3


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
    """Two bytes an element."""
    return cast_promise(sum(s.numel() for s in shapes), 2, world)


def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
    """Divide, cast, all-reduce, cast back."""

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return cast_all_reduce(bucket, torch.float16, ctx.world_size)

    return hook
