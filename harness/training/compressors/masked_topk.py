"""Negative control: it masks to top-k but sends dense tensors, which the byte check must detect."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.documents import Json
from harness.training.compressors import topk
from harness.training.context import RankContext
from harness.training.transports import ErrorFeedback, Hook, Promise, done, kept

ERROR_BOUND = 1.0
KNOBS = dict(rho=0.01)
LOSSLESS = dict(rho=1.0)
CONTROL = True


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
    return topk.promise(shapes, world, knobs)


def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
    """Return a hook that sets small entries to zero and all-reduces all entries.

    The gradients are correct, but no bytes are saved.
    """
    feedback = ErrorFeedback()

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer()
        parts = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            wanted = feedback.add(parameter, gradient)
            index = topk.select(wanted, kept(wanted.numel(), knobs["rho"]))
            sent = torch.zeros_like(wanted)
            sent[index] = wanted[index]
            feedback.keep(parameter, wanted, sent)
            parts.append(sent)
        flat.copy_(torch.cat(parts))
        dist.all_reduce(flat)
        return done(flat.div_(ctx.world_size))

    hook.feedback = feedback  # type: ignore[attr-defined]  # the check reads it
    return hook
