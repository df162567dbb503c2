"""Count-sketch: ranks add sketches, find the largest entries in the sum, and exchange them."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training.context import RankContext
from harness.training.observe.laps import lap
from harness.training.transports import ErrorFeedback, Knobs, Promise, done, kept, total

ERROR_BOUND = 1.0
#: A sketch has ``rows`` rows. A row has ``columns`` times as many columns as there are entries to
#: find.
KNOBS = dict(rho=0.01, rows=5, columns=4.0, feedback=True)
LOSSLESS = dict(rho=1.0)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")


def _columns(n: int, knobs: Knobs) -> int:
    """Return the number of columns of the sketch of a vector of n elements."""
    return max(1, int(knobs["columns"] * kept(n, knobs["rho"])))


def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
    """Return the bytes of two all-reduces: of the sketch, and of the found entries' values."""
    n = total(shapes)
    payload = 4.0 * (knobs["rows"] * _columns(n, knobs) + kept(n, knobs["rho"]))
    return Promise(
        payload_bytes={"all_reduce": payload},
        sent_bytes=2 * (world - 1) / world * payload,
        formula="2 (N-1)/N 4 (R C + k)",
    )


class Sketched:
    """The hook of count-sketch (Charikar et al., 2002; Rothchild et al., 2020).

    The papers estimate the values of the found entries from the sketch; this hook exchanges the
    exact values.
    """

    def __init__(self, ctx: RankContext, knobs: Knobs) -> None:
        self.world = ctx.world_size
        self.knobs = knobs
        self.seed = ctx.case.seed
        self.feedback = ErrorFeedback() if knobs["feedback"] else None
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    def table(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return, for each row and entry, the entry's column (int64) and its sign.

        Both tensors have the shape (rows, n). They are drawn from the case's seed and are therefore
        the same on all ranks.
        """
        if n not in self.tables:
            source = torch.Generator().manual_seed(self.seed + n)
            size = (int(self.knobs["rows"]), n)
            columns = torch.randint(_columns(n, self.knobs), size, generator=source)
            signs = torch.randint(2, size, generator=source) * 2.0 - 1.0
            self.tables[n] = columns.to(device), signs.to(device)
        return self.tables[n]

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat, parameters = bucket.buffer(), bucket.parameters()
        wanted = flat.float()
        if self.feedback is not None:
            pairs = zip(parameters, bucket.gradients(), strict=True)
            wanted = torch.cat([self.feedback.add(p, g) for p, g in pairs]).float()
        n = len(wanted)
        k = kept(len(wanted), float(self.knobs["rho"]))
        columns, signs = self.table(n, flat.device)
        with lap("encode"):
            sketch = wanted.new_zeros((len(columns), _columns(n, self.knobs)))
            sketch.scatter_add_(1, columns, signs * wanted)
        dist.all_reduce(sketch)
        with lap("decode"):
            estimates = (sketch.gather(1, columns) * signs).median(0).values
            index = torch.topk(estimates.abs(), k, sorted=False).indices
            values = wanted[index]
            if self.feedback is not None:
                left = wanted.index_fill(0, index, 0.0)
                for parameter, part in zip(
                    parameters, left.split([tensor.numel() for tensor in parameters]), strict=True
                ):
                    self.feedback.owe(parameter, part)
        dist.all_reduce(values)
        return done(flat.zero_().index_copy_(0, index, (values / self.world).to(flat.dtype)))


def build(ctx: RankContext, knobs: Knobs) -> Sketched:
    return Sketched(ctx, knobs)
