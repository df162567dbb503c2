"""PowerSGD: low-rank factors of each matrix, with warm start and error feedback."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.documents import Json
from harness.training.context import RankContext
from harness.training.observe.laps import lap
from harness.training.transports import ErrorFeedback, Promise, done

ERROR_BOUND = 1.0
KNOBS = dict(rank=2, feedback=True)
LOSSLESS = dict(rank=4096)
CLAIM = "contracts"
METHOD = dict(optimizer="momentum")


def _matrix(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns of a parameter as a matrix; its first dimension is the rows."""
    return shape[0], shape.numel() // shape[0]


def _rank(shape: torch.Size, rank: int) -> int | None:
    """Return the rank of a parameter's factors, or None if they would not be smaller than it."""
    if len(shape) < 2:
        return None
    m, q = _matrix(shape)
    r = min(rank, m, q)
    return r if rank >= 4096 or r * (m + q) < m * q else None


def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
    """Return the bytes of all factors and of the parameters without factors, in one bucket."""
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
    """Average all parts over the ranks in one all-reduce."""
    flat = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(flat)
    flat.div_(world)
    return [
        f.view_as(p)
        for f, p in zip(flat.split([part.numel() for part in parts]), parts, strict=True)
    ]


class LowRank:
    """The hook: one power iteration per matrix (Vogels et al., NeurIPS 2019, algorithm 1)."""

    def __init__(self, ctx: RankContext, knobs: Mapping[str, Json]) -> None:
        self.world = ctx.world_size
        self.rank = int(knobs["rank"])
        self.feedback = ErrorFeedback() if knobs["feedback"] else None
        self.factors: dict[Tensor, Tensor] = {}

    def warm(self, parameter: Tensor, q: int, r: int) -> Tensor:
        """Return the right factor of the last step; the first step draws it from a common seed."""
        if parameter not in self.factors:
            generator = torch.Generator().manual_seed(q * 7919 + r)
            drawn = torch.randn(q, r, generator=generator)
            self.factors[parameter] = drawn.to(parameter.device)
        return self.factors[parameter]

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat, gradients, parameters = bucket.buffer(), bucket.gradients(), bucket.parameters()
        matrices: dict[int, Tensor] = {}
        dense: list[int] = []
        left: list[Tensor] = []
        with lap("encode"):
            for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                r = _rank(gradient.shape, self.rank)
                if r is None:
                    dense.append(i)
                    continue
                wanted = gradient.flatten()
                if self.feedback is not None:
                    wanted = self.feedback.take(parameter, gradient)
                matrices[i] = wanted.view(_matrix(gradient.shape)).float()
                left.append(matrices[i] @ self.warm(parameter, matrices[i].shape[1], r))
        averaged = _mean([*left, *(gradients[i].float() for i in dense)], self.world)
        with lap("encode"):
            bases = [torch.linalg.qr(tensor).Q for tensor in averaged[: len(left)]]
            # This product reads the matrix by rows; m.T @ p takes thirty times as long on a CPU.
            right = [(p.T @ m).T for m, p in zip(matrices.values(), bases, strict=True)]
        right = _mean(right, self.world) if right else []
        with lap("decode"):
            for i, value in zip(dense, averaged[len(left) :], strict=True):
                gradients[i].copy_(value)
            for (i, matrix), p, q in zip(matrices.items(), bases, right, strict=True):
                self.factors[parameters[i]] = q
                approximation = gradients[i].copy_((p @ q.T).view_as(gradients[i]))
                if self.feedback is not None:
                    self.feedback.owe(parameters[i], matrix.flatten().sub_(approximation.flatten()))
            return done(flat)


def build(ctx: RankContext, knobs: Mapping[str, Json]) -> LowRank:
    return LowRank(ctx, knobs)
