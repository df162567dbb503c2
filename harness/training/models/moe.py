"""Mixture of experts: a decoder with routed feed-forward, top-1 or top-2, and a capacity."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.models import decoder
from harness.training.models.decoder import CausalAttention
from harness.training.parallel.experts import Routing

SIZES = {
    "nano": dict(d=64, layers=2, heads=4, kv=4, ff=128, experts=8, vocab=256, seq=32, batch=8),
    "small": dict(d=256, layers=4, heads=8, kv=8, ff=512, experts=8, vocab=1024, seq=64, batch=4),
    "243m": dict(
        d=512, layers=8, heads=8, kv=8, ff=1024, experts=16, vocab=32000, seq=1024, batch=8
    ),
    "30b": dict(
        d=2048, layers=48, heads=32, kv=4, ff=1024, experts=128, vocab=151936, seq=4096, batch=1
    ),
    "mixtral-nano": dict(
        d=64, layers=2, heads=4, kv=2, ff=128, experts=8, vocab=256, seq=32, batch=8, gated=True
    ),
    "mixtral-8x7b": dict(
        d=4096,
        layers=32,
        heads=32,
        kv=8,
        ff=14336,
        experts=8,
        vocab=32000,
        seq=4096,
        batch=1,
        gated=True,
    ),
}
#: All blocks between the embedding and the head are identical.
ALIKE = True
KNOBS = dict(top=2, capacity=1.25, balance=0.01)
#: Modules whose parameters have one entry per expert along dimension 0, which ranks may divide.
EXPERTS = "block*.experts"

batch, tokens, floor = decoder.batch, decoder.tokens, decoder.floor


class Experts(nn.Module):
    """Parallel two-layer networks that map (experts, capacity, d) to the same shape.

    They use GELU, or SwiGLU if ``gated``.
    """

    def __init__(self, experts: int, d: int, ff: int, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        self.up = nn.Parameter(torch.empty(experts, d, ff * (2 if gated else 1)))
        self.down = nn.Parameter(torch.empty(experts, ff, d))
        for weight in (self.up, self.down):
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def forward(self, rooms: Tensor) -> Tensor:
        hidden = rooms @ self.up
        if self.gated:
            gate, wide = hidden.chunk(2, -1)
            return functional.silu(gate) * wide @ self.down
        return functional.gelu(hidden, approximate="tanh") @ self.down


class ExpertBlock(nn.Module):
    """Pre-norm attention and experts (GShard, Lepikhin et al., 2020; Switch, Fedus et al., 2021).

    Each token is sent to the ``top`` experts that the router chooses for it. The first choices of
    all tokens come before the second choices. If the choices were spread evenly, each expert would
    get the same number. An expert takes at most ``capacity`` times this number and drops the rest.
    """

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        d, heads, kv = size["d"], size["heads"], size["kv"]
        self.dim = d // heads
        self.queries = heads // kv
        self.top = size["top"]
        self.capacity = size["capacity"]
        self.balance = size["balance"]
        self.norm1 = nn.RMSNorm(d)
        self.norm2 = nn.RMSNorm(d)
        self.qkv = nn.Linear(d, (heads + 2 * kv) * self.dim, bias=False)
        self.attention = CausalAttention()
        self.out = nn.Linear(d, d, bias=False)
        self.router = nn.Linear(d, size["experts"], bias=False)
        self.experts = Experts(size["experts"], d, size["ff"], bool(size.get("gated")))
        self.routing = Routing(size["experts"], self.top)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        grouped = self.qkv(self.norm1(x)).view(b, s, -1, self.queries + 2, self.dim)
        q, k, v = (
            part.flatten(2, 3).transpose(1, 2) for part in grouped.split((self.queries, 1, 1), 3)
        )
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, -1))
        return x + self.routed(self.norm2(x).view(b * s, d)).view(b, s, d)

    def routed(self, x: Tensor) -> Tensor:
        """Return the outputs of the experts for tokens (T, d), weighted by the router's scores."""
        count = x.shape[0]
        num = self.router.out_features
        likely = self.router(x).float().softmax(-1)
        sure, chosen = likely.topk(self.top, -1)
        if self.top > 1:
            sure = sure / sure.sum(-1, keepdim=True)
        room = math.ceil(self.capacity * count * self.top / num)
        wanted = functional.one_hot(chosen.T.flatten(), num)  # first choices come first
        counted = wanted.T.contiguous().cumsum(1).T  # along rows: columns take 6 ms on CUDA
        place = (counted * wanted).sum(-1) - 1
        lies = torch.where(place < room, chosen.T.flatten() * room + place, num * room)
        source = torch.arange(count, device=x.device).repeat(self.top)
        rooms = x.new_zeros(num * room + 1, d := x.shape[1]).index_copy(0, lies, x[source])
        answers = self.experts(rooms[:-1].view(num, room, d)).flatten(0, 1)
        answers = torch.cat((answers, answers.new_zeros(1, d)))[lies]
        mixed = (answers * sure.T.reshape(-1, 1).to(x.dtype)).view(self.top, count, d).sum(0)
        self.routing.note(wanted.sum(0), place >= room)
        # The balance loss of Switch: the number of experts times the sum over experts of
        # (fraction of first choices) x (mean probability).
        first = functional.one_hot(chosen[:, 0], num).float().mean(0)
        unbalance = num * (first * likely.mean(0)).sum()
        added: Tensor = _Also.apply(mixed, self.balance * unbalance)  # type: ignore[no-untyped-call]
        return added


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build embedding, blocks, norm and an untied head, as in the dense decoder."""
    plain = decoder.build({**size, "layers": 0})
    blocks = [(f"block{i}", ExpertBlock(size)) for i in range(size["layers"])]
    named = dict(plain.named_children())
    return nn.Sequential(OrderedDict([("embed", named["embed"]), *blocks, ("head", named["head"])]))


class _Also(torch.autograd.Function):
    """An identity that adds the gradient of a second loss, scaled like the main loss."""

    scale: float | Tensor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens: Tensor) -> Tensor:
        ctx.like = tokens
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like) * _Also.scale


class _Scaled(torch.autograd.Function):
    """An identity that records the factor by which the loss is scaled, at the start of backward.

    A pass without data says nothing about it. Stages without the loss keep the factor 1.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if not gradients[0].is_meta:
            _Also.scale = gradients[0]
        return gradients[0]


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy; the balance losses of the routers are added in backward."""
    plain = decoder.loss(output, targets)
    scaled: Tensor = _Scaled.apply(plain)  # type: ignore[no-untyped-call]
    return scaled


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs as in the dense decoder, but count only the experts that a token is sent to."""
    d = size["d"]
    s = int(size["seq"])
    layers = size["layers"]
    dim = d // size["heads"]
    attention = d * (size["heads"] + 2 * size["kv"]) * dim + d * d
    routed = d * size["experts"] + size["top"] * (3 if size.get("gated") else 2) * d * size["ff"]
    weights = layers * (attention + routed) + d * size["vocab"]
    return float(6.0 * weights * s + 12.0 * layers * s * s * d)
