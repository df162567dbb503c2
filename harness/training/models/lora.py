"""LoRA fine-tuning of a Llama: frozen weights with adapters that train."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import uniform
from harness.training.models import decoder
from harness.training.models.decoder import CausalAttention

SIZES = {
    "nano": dict(d=64, layers=4, heads=4, kv=2, ff=128, vocab=256, seq=32, batch=8),
    "tiny": dict(d=128, layers=4, heads=4, kv=2, ff=256, vocab=512, seq=64, batch=4),
    "llama2-7b": dict(d=4096, layers=32, heads=32, kv=32, ff=11008, vocab=32000, seq=2048, batch=1),
    "llama-8b": dict(d=4096, layers=32, heads=32, kv=8, ff=14336, vocab=128256, seq=2048, batch=1),
    "llama-70b": dict(d=8192, layers=80, heads=64, kv=8, ff=28672, vocab=128256, seq=2048, batch=1),
}
#: An adapter adds alpha / rank times a matrix product of rank ``rank`` to a projection (Hu et al.,
#: 2022). ``targets`` selects the projections with adapters: queries and values of the attention
#: ("qv"), or all projections ("all").
KNOBS = dict(rank=16, alpha=32.0, targets="all")
#: All blocks between the embedding and the head are identical.
ALIKE = True
#: The names of the projections of a block.
PROJECTIONS = ("q", "k", "v", "out", "gate", "up", "down")

batch, loss, tokens, floor = decoder.batch, decoder.loss, decoder.tokens, decoder.floor


def _widths(size: Mapping[str, Json]) -> dict[str, tuple[int, int]]:
    """Return the number of inputs and of outputs of each projection."""
    d, ff = int(size["d"]), int(size["ff"])
    narrow = d // int(size["heads"]) * int(size["kv"])
    return {
        "q": (d, d), "k": (d, narrow), "v": (d, narrow), "out": (d, d),
        "gate": (d, ff), "up": (d, ff), "down": (ff, d),
    }  # fmt: skip


def _adapted(size: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the projections that have an adapter; raise ValueError for unknown ``targets``."""
    targets = str(size["targets"])
    if targets not in ("qv", "all"):
        raise ValueError(f"lora.targets is {targets!r}; expected qv or all")
    return ("q", "v") if targets == "qv" else PROJECTIONS


class Frozen(nn.Module):
    """Weights of shape (outputs, inputs) that are not trained and do not depend on the seed."""

    def __init__(self, outputs: int, inputs: int, place: int, scale: float) -> None:
        super().__init__()
        rows = torch.arange(outputs) + (place << 32)
        weight = uniform(rows, inputs).mul_(scale).to(torch.get_default_dtype())
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class Adapter(nn.Module):
    """The projection W x + alpha / r B A x.

    A starts with random values and B with zeros, so training starts from W.
    """

    def __init__(self, widths: tuple[int, int], place: int, rank: int, alpha: float) -> None:
        super().__init__()
        inputs, outputs = widths
        # A uniform distribution in +- sqrt(3 / inputs) has the variance 1 / inputs.
        self.frozen = Frozen(outputs, inputs, place, (3 / inputs) ** 0.5)
        self.scale = alpha / rank if rank else 0.0
        self.down = nn.Linear(inputs, rank, bias=False) if rank else None
        self.up = nn.Linear(rank, outputs, bias=False) if rank else None
        if self.up is not None:
            nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x)
        if self.down is None or self.up is None:
            return out
        return cast(Tensor, out + self.up(self.down(x)) * self.scale)


class Norm(nn.Module):
    """RMSNorm with a weight that is frozen at one."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight)


class Embedding(nn.Module):
    """A frozen embedding table that maps ids (B, S) to rows (B, S, d)."""

    def __init__(self, vocab: int, d: int) -> None:
        super().__init__()
        self.table = Frozen(vocab, d, 1, 3**0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.table.weight)


class LoraBlock(nn.Module):
    """A Llama block with adapters that maps (B, S, d) to the same shape."""

    q: Adapter
    k: Adapter
    v: Adapter
    out: Adapter
    gate: Adapter
    up: Adapter
    down: Adapter

    def __init__(self, size: Mapping[str, Json], number: int) -> None:
        super().__init__()
        self.dim = int(size["d"]) // int(size["heads"])
        self.norm1 = Norm(size["d"])
        self.norm2 = Norm(size["d"])
        self.attention = CausalAttention()
        adapted = _adapted(size)
        for i, (name, widths) in enumerate(_widths(size).items()):
            rank = int(size["rank"]) if name in adapted else 0
            place = 16 + len(PROJECTIONS) * number + i
            setattr(self, name, Adapter(widths, place, rank, float(size["alpha"])))

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        seen = self.norm1(x)
        q, k, v = (
            project(seen).view(b, s, -1, self.dim).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, d))
        seen = self.norm2(x)
        fed: Tensor = self.down(functional.silu(self.gate(seen)) * self.up(seen))
        return x + fed


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build embedding, blocks, norm and head. Only the adapters of the blocks are trained."""
    d = size["d"]
    blocks = [(f"block{i}", LoraBlock(size, i)) for i in range(size["layers"])]
    head = nn.Sequential(OrderedDict(norm=Norm(d), fc=Frozen(size["vocab"], d, 2, (3 / d) ** 0.5)))
    return nn.Sequential(
        OrderedDict([("embed", Embedding(size["vocab"], d)), *blocks, ("head", head)])
    )


def flops(size: Mapping[str, Json]) -> float:
    """Return the FLOPs of a sample.

    Per token, a frozen weight counts 4, because it needs no gradient, and an adapter weight counts
    6. The input of the first block needs no gradient, so the weights of its first projections count
    2 less. Attention counts 12 L S^2 d, as in the decoder.
    """
    d = int(size["d"])
    s = int(size["seq"])
    layers = int(size["layers"])
    rank = int(size["rank"])
    widths = _widths(size)
    frozen = sum(a * b for a, b in widths.values())
    adapters = sum(rank * sum(widths[name]) for name in _adapted(size))
    of_first = sum(widths[name][0] * widths[name][1] for name in ("q", "k", "v"))
    of_first += sum(rank * widths[name][0] for name in _adapted(size) if name in ("q", "k", "v"))
    a_token = layers * (4.0 * frozen + 6.0 * adapters) + 4.0 * d * size["vocab"] - 2.0 * of_first
    return float(a_token * s + 12.0 * layers * s * s * d)
