"""Block-wise int8 in two phases: all-to-all, sum in fp32, encode again, all-gather."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from harness.base.documents import Json
from harness.training.context import RankContext
from harness.training.hooks import Hook, Promise, all_gather, done

ERROR_BOUND = 0.03
KNOBS = dict(block=256)


def _padded(elements: int, world: int, block: int) -> int:
    return -(-elements // (world * block)) * world * block


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
    """One byte an element and a 4-byte scale a block, twice; for one bucket."""
    block = knobs["block"]
    n = _padded(sum(s.numel() for s in shapes), world, block)
    message = n * (1 + 4 / block)
    return Promise(
        payload_bytes={"all_to_all": message, "all_gather": message / world},
        sent_bytes=2 * (world - 1) / world * message,
        formula="2 (N-1)/N n (1 + 4/block)",
    )


def encode(x: Tensor, block: int) -> Tensor:
    """fp32 (rows, m) -> uint8 (rows, m + 4 m / block): round to nearest of amax / 127 a block."""
    blocks = x.view(x.shape[0], -1, block)
    scale = blocks.abs().amax(2) / 127
    values = (blocks / scale.clamp(min=1e-30)[..., None]).round().to(torch.int8)
    return torch.cat((values.flatten(1).view(torch.uint8), scale.view(torch.uint8)), 1)


def decode(message: Tensor, block: int) -> Tensor:
    """The inverse of ``encode``, with an error of at most scale / 2 an element."""
    m = message.shape[1] * block // (block + 4)
    values = message[:, :m].contiguous().view(torch.int8).view(message.shape[0], -1, block)
    scale = message[:, m:].contiguous().view(torch.float32)
    return (values.float() * scale[..., None]).flatten(1)


def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
    world, block = ctx.world_size, knobs["block"]

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer()
        padded = functional.pad(
            flat.float(), (0, _padded(flat.numel(), world, block) - flat.numel())
        )
        outgoing = encode(padded.view(world, -1), block)
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        chunk = encode(decode(incoming, block).sum(0, keepdim=True) / world, block)
        gathered = all_gather(chunk[0], world)
        return done(flat.copy_(decode(gathered, block).flatten()[: flat.numel()]))

    return hook
