"""PowerSGD: rank-r factors of each matrix with warm start and error feedback."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.documents import Json
from harness.training.context import RankContext
from harness.training.hooks import ErrorFeedback, Hook, Promise, done

ERROR_BOUND = 1.0
KNOBS = dict(rank=2)
LOSSLESS = dict(rank=4096)


def _matrix(shape: torch.Size) -> tuple[int, int]:
    return shape[0], shape.numel() // shape[0]


def _rank(shape: torch.Size, rank: int) -> int | None:
    """The rank used for a parameter; None when factors would not be smaller than it."""
    if len(shape) < 2:
        return None
    m, q = _matrix(shape)
    r = min(rank, m, q)
    return r if rank >= 4096 or r * (m + q) < m * q else None


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
    """Factors of the matrices, and the rest as it is; for one bucket."""
    total = 0.0
    for shape in shapes:
        r = _rank(shape, knobs["rank"])
        total += 4.0 * (shape.numel() if r is None else r * sum(_matrix(shape)))
    return Promise(
        payload_bytes={"all_reduce": total},
        sent_bytes=2 * (world - 1) / world * total,
        formula="8 (N-1)/N (sum r (m + q) + dense)",
    )


def _mean(parts: list[Tensor], world: int) -> list[Tensor]:
    """All parts averaged over ranks in one all-reduce."""
    flat = torch.cat([p.flatten() for p in parts])
    dist.all_reduce(flat)
    flat.div_(world)
    return [
        f.view_as(p) for f, p in zip(flat.split([p.numel() for p in parts]), parts, strict=True)
    ]


def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
    """One power step per matrix (Vogels et al., NeurIPS 2019, algorithm 1)."""
    world, feedback = ctx.world_size, ErrorFeedback()
    factors: dict[Tensor, Tensor] = {}

    def warm(parameter: Tensor, q: int, r: int) -> Tensor:
        if parameter not in factors:
            generator = torch.Generator().manual_seed(q * 7919 + r)
            factors[parameter] = torch.randn(q, r, generator=generator).to(parameter.device)
        return factors[parameter]

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat, gradients, parameters = bucket.buffer(), bucket.gradients(), bucket.parameters()
        matrices: dict[int, Tensor] = {}
        dense: list[int] = []
        left: list[Tensor] = []
        for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            r = _rank(gradient.shape, knobs["rank"])
            if r is None:
                dense.append(i)
                continue
            matrices[i] = feedback.add(parameter, gradient).view(_matrix(gradient.shape))
            left.append(matrices[i] @ warm(parameter, matrices[i].shape[1], r))
        averaged = _mean([*left, *(gradients[i] for i in dense)], world)
        bases = [torch.linalg.qr(p).Q for p in averaged[: len(left)]]
        right = (
            _mean([m.T @ p for m, p in zip(matrices.values(), bases, strict=True)], world)
            if bases
            else []
        )
        for i, value in zip(dense, averaged[len(left) :], strict=True):
            gradients[i].copy_(value)
        for (i, matrix), p, q in zip(matrices.items(), bases, right, strict=True):
            factors[parameters[i]] = q
            approximation = p @ q.T
            feedback.keep(parameters[i], matrix.flatten(), approximation.flatten())
            gradients[i].copy_(approximation.view_as(gradients[i]))
        return done(flat)

    return hook
