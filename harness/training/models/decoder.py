"""Decoder-only transformer: shapes of GPT-2 and Llama from nano to 70B, for every strategy."""

import functools
import math
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import hashed

SIZES = {
    "nano": dict(d=64, layers=4, heads=4, kv=4, ff=256, vocab=256, seq=32, batch=8),
    "tiny": dict(d=128, layers=4, heads=4, kv=4, ff=512, vocab=512, seq=64, batch=4),
    "mini": dict(d=256, layers=4, heads=8, kv=8, ff=1024, vocab=1024, seq=64, batch=2),
    "base": dict(d=192, layers=6, heads=6, kv=6, ff=768, vocab=512, seq=128, batch=2),
    "124m": dict(d=768, layers=12, heads=12, kv=12, ff=3072, vocab=50304, seq=1024, batch=8),
    "175m": dict(d=896, layers=14, heads=14, kv=14, ff=3584, vocab=32000, seq=1024, batch=8),
    "350m": dict(d=1024, layers=24, heads=16, kv=16, ff=4096, vocab=50304, seq=1024, batch=8),
    # The head has the work of two blocks, so 22 blocks give 2, 4 or 8 stages equal work.
    "1b2": dict(d=2048, layers=22, heads=16, kv=16, ff=8192, vocab=50304, seq=1024, batch=4),
    "1b3": dict(d=2048, layers=24, heads=16, kv=16, ff=8192, vocab=50304, seq=1024, batch=4),
    "llama-1b": dict(
        d=2048, layers=16, heads=32, kv=8, ff=8192, vocab=128256, seq=2048, batch=2, gated=True
    ),
    "llama-8b": dict(
        d=4096, layers=32, heads=32, kv=8, ff=14336, vocab=128256, seq=2048, batch=1, gated=True
    ),
    "llama-70b": dict(
        d=8192, layers=80, heads=64, kv=8, ff=28672, vocab=128256, seq=2048, batch=1, gated=True
    ),
}

#: All blocks between the embedding and the head are identical.
ALIKE = True

#: How layers are split by width. Attention is split by groups of heads; each rank has whole groups.
TENSOR = {
    "units": "kv",
    "cut": {
        "embed": "vocabulary", "block*.norm*": "norm", "block*.qkv": "column", "block*.out": "row",
        "block*.up": "column", "block*.down": "row", "head.norm": "norm", "head.fc": "logits",
    },
}  # fmt: skip

#: Modules that need the whole sequence. If ranks split the sequence, the attribute ``attend`` of
#: these modules, a function of (q, k, v), is replaced.
CONTEXT = "block*.attention"


@functools.cache
def _rotary(
    seq: int, dim: int, device: torch.device, dtype: torch.dtype, mode: object
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of shape (seq, dim / 2).

    The result is cached. It is not a buffer of a module, because DDP would broadcast it in every
    step. ``mode`` is part of the cache key, because tensors of a fake tensor mode have no values.
    """
    frequency = 10000.0 ** -(torch.arange(0, dim, 2, device=device).float() / dim)
    angle = torch.arange(seq, device=device).float()[:, None] * frequency[None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotate(x: Tensor, positions: Tensor | None, length: int) -> Tensor:
    """Apply the rotary position embedding to (B, heads, S, dim); halves are paired as in Llama."""
    mode = None if type(x) is Tensor else getattr(x, "fake_mode", None)
    cos, sin = _rotary(length or x.shape[2], x.shape[3], x.device, x.dtype, mode)
    if positions is not None:
        cos = cos[positions]
        sin = sin[positions]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class CausalAttention(nn.Module):
    """Causal attention of queries (B, heads, S, dim) to keys and values (B, groups, S, dim).

    If ranks split the sequence, ``positions`` holds this rank's positions in a sequence of
    ``length`` tokens, and ``attend`` is replaced by attention over all ranks.
    """

    positions: Tensor | None = None
    length = 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (_rotate(tensor, self.positions, self.length) for tensor in (q, k))
        return self.attend(q, k, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1]
        )


class DecoderBlock(nn.Module):
    """Pre-norm grouped-query attention and feed-forward (GELU, or SwiGLU if gated).

    The rows of ``qkv`` are ordered by group of heads, so a range of groups is a slice of the rows;
    the rows of a gated ``up`` are ordered accordingly. With tensor parallelism a rank holds some of
    the groups, and forward infers their number from the shapes.
    """

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        d, heads, kv = size["d"], size["heads"], size["kv"]
        self.dim = d // heads
        self.queries = heads // kv
        self.gated = bool(size.get("gated"))
        self.wide = size["ff"] // kv
        self.norm1 = nn.RMSNorm(d)
        self.norm2 = nn.RMSNorm(d)
        self.qkv = nn.Linear(d, (heads + 2 * kv) * self.dim, bias=False)
        self.attention = CausalAttention()
        self.out = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, size["ff"] * (2 if self.gated else 1), bias=False)
        self.down = nn.Linear(size["ff"], d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x))
        b, s, _ = qkv.shape
        grouped = qkv.view(b, s, -1, self.queries + 2, self.dim)
        q, k, v = (
            part.flatten(2, 3).transpose(1, 2) for part in grouped.split((self.queries, 1, 1), 3)
        )
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, -1))
        h = self.up(self.norm2(x))
        if self.gated:
            gate, h = h.view(b, s, -1, 2, self.wide).unbind(3)
            h = (functional.silu(gate) * h).flatten(2)
        else:
            h = functional.gelu(h, approximate="tanh")
        return x + self.down(h)  # type: ignore[no-any-return]


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build embedding, blocks, norm and an untied head."""
    d = size["d"]
    embed = nn.Embedding(size["vocab"], d)
    nn.init.normal_(embed.weight, std=0.02)
    head = nn.Sequential(
        OrderedDict(norm=nn.RMSNorm(d), fc=nn.Linear(d, size["vocab"], bias=False))
    )
    blocks = [(f"block{i}", DecoderBlock(size)) for i in range(size["layers"])]
    return nn.Sequential(OrderedDict([("embed", embed), *blocks, ("head", head)]))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return tokens (B, S) and next tokens (B, S) of an artificial language that can be learned.

    The token after x is (5 x + 17) mod V. One token in ten is replaced by a random token.
    """
    s = int(size["seq"])
    vocab = size["vocab"]
    random = hashed(ids, s + 1)
    noisy = random % 10 == 0
    noisy[:, 0] = False
    places = torch.arange(s + 1, device=ids.device)
    drawn = (
        torch.where(noisy, random >> 8, random) % vocab
    )  # used at the first position and at noisy ones
    last = torch.where(noisy, places, 0).cummax(1).values
    tables = (torch.tensor(numbers, device=ids.device) for numbers in _applied(s, vocab))
    factor, offset = (table[places - last] for table in tables)
    text = (factor * drawn.gather(1, last) + offset) % vocab
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


@functools.cache
def _applied(times: int, vocab: int) -> tuple[list[int], list[int]]:
    """Return a and b for which (a x + b) mod V is 5 x + 17 applied 0, 1, .. ``times`` times."""
    factors = [1]
    offsets = [0]
    for _ in range(times):
        factors.append(5 * factors[-1] % vocab)
        offsets.append((5 * offsets[-1] + 17) % vocab)
    return factors, offsets


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float().flatten(0, 1), targets.flatten())


def floor(size: Mapping[str, Json]) -> float:
    """Return the entropy of the next token in nats, which is the least possible loss.

    The entropy accounts for random replacements that equal the replaced token.
    """
    noise = 0.1
    vocab = size["vocab"]
    usual = 1 - noise + noise / vocab
    other = noise / vocab
    return float(-usual * math.log(usual) - (vocab - 1) * other * math.log(other))


def tokens(size: Mapping[str, Json]) -> int:
    return int(size["seq"])


def flops(size: Mapping[str, Json]) -> float:
    """Return the FLOPs 6 (P - P_embedding - P_norm) S + 12 L S^2 d (PaLM, app. B).

    Attention counts fully, although causal attention needs only half of the FLOPs.
    """
    d = size["d"]
    s = int(size["seq"])
    layers = size["layers"]
    dim = d // size["heads"]
    attention = d * (size["heads"] + 2 * size["kv"]) * dim + d * d
    feed_forward = d * size["ff"] * (3 if size.get("gated") else 2)
    weights = layers * (attention + feed_forward) + d * size["vocab"]
    return float(6.0 * weights * s + 12.0 * layers * s * s * d)
