"""GPT-2 and GPT-3: learned positions, LayerNorm and biases, with an untied head."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.models import decoder

#: Sizes from Brown et al. (2020), table 2.1. For "1b3" the table states 24 heads of dimension 128,
#: but the width of 2048 needs 16 heads.
SIZES = {
    "nano": dict(d=64, layers=4, heads=4, vocab=256, seq=32, batch=8),
    "tiny": dict(d=128, layers=4, heads=4, vocab=512, seq=64, batch=4),
    "125m": dict(d=768, layers=12, heads=12, vocab=50257, seq=2048, batch=4),
    "350m": dict(d=1024, layers=24, heads=16, vocab=50257, seq=2048, batch=4),
    "760m": dict(d=1536, layers=24, heads=16, vocab=50257, seq=2048, batch=2),
    "1b3": dict(d=2048, layers=24, heads=16, vocab=50257, seq=2048, batch=2),
    "6b7": dict(d=4096, layers=32, heads=32, vocab=50257, seq=2048, batch=1),
    "13b": dict(d=5120, layers=40, heads=40, vocab=50257, seq=2048, batch=1),
    "175b": dict(d=12288, layers=96, heads=96, vocab=50257, seq=2048, batch=1),
}
#: All blocks between the positions and the head are identical.
ALIKE = True

batch, loss, tokens, floor = decoder.batch, decoder.loss, decoder.tokens, decoder.floor


class Positions(nn.Module):
    """Add a learned vector for each position of the sequence to (B, S, d)."""

    def __init__(self, seq: int, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seq, d))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class GPTBlock(nn.Module):
    """Pre-norm attention and a feed-forward layer four times as wide, from and to (B, S, d)."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        parts = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, d))
        hidden = functional.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.down(hidden)  # type: ignore[no-any-return]


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build embedding, positions, blocks, norm and head."""
    d = size["d"]
    embed = nn.Embedding(size["vocab"], d)
    nn.init.normal_(embed.weight, std=0.02)
    head = nn.Sequential(
        OrderedDict(norm=nn.LayerNorm(d), fc=nn.Linear(d, size["vocab"], bias=False))
    )
    blocks = [(f"block{i}", GPTBlock(d, size["heads"])) for i in range(size["layers"])]
    named = [("embed", embed), ("positions", Positions(size["seq"], d)), *blocks, ("head", head)]
    return nn.Sequential(OrderedDict(named))


def flops(size: Mapping[str, Json]) -> float:
    """Return the FLOPs 6 (12 L d^2 + V d) S + 12 L S^2 d (PaLM, app. B).

    Attention counts fully, although causal attention needs only half of the FLOPs.
    """
    d = size["d"]
    s = int(size["seq"])
    layers = size["layers"]
    weights = 12 * layers * d * d + d * size["vocab"]
    return float(6.0 * weights * s + 12.0 * layers * s * s * d)
