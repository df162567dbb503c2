"""Top-k by magnitude with error feedback: values and int32 indices, all-gathered."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.documents import Json
from harness.training.context import RankContext
from harness.training.hooks import ErrorFeedback, Hook, Promise, all_gather, done

ERROR_BOUND = 1.0
KNOBS = dict(rho=0.01)
LOSSLESS = dict(rho=1.0)


def kept(elements: int, rho: float) -> int:
    """Entries sent of a parameter: fixed, so that no sizes need exchanging."""
    return max(1, int(rho * elements))


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
    """8 bytes a kept entry, to every other rank."""
    if sum(s.numel() for s in shapes) >= 2**31:
        raise ValueError("int32 indices address 2^31 elements at most")
    message = 8.0 * sum(kept(s.numel(), knobs["rho"]) for s in shapes)
    return Promise(
        payload_bytes={"all_gather": message}, sent_bytes=(world - 1) * message, formula="(N-1) 8 k"
    )


def select(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest magnitudes."""
    return torch.topk(x.abs(), k, sorted=False).indices


def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
    """Indices and values of all parameters of a bucket travel in one message."""
    world, rho, feedback = ctx.world_size, knobs["rho"], ErrorFeedback()

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat, gradients = bucket.buffer(), bucket.gradients()
        indices, values, offset = [], [], 0
        for parameter, gradient in zip(bucket.parameters(), gradients, strict=True):
            wanted = feedback.add(parameter, gradient)
            index = select(wanted, kept(wanted.numel(), rho))
            sent = torch.zeros_like(wanted)
            sent[index] = wanted[index]
            feedback.keep(parameter, wanted, sent)
            indices.append((index + offset).to(torch.int32))
            values.append(wanted[index])
            offset += wanted.numel()
        message = torch.cat((*indices, *(v.float().view(torch.int32) for v in values)))
        flat.zero_()
        for part in all_gather(message, world).view(world, 2, -1):
            # Rank by rank and unique within a rank: the same bits everywhere, on CUDA too.
            flat[part[0].long()] += part[1].view(torch.float32)
        return done(flat.div_(world))

    return hook
