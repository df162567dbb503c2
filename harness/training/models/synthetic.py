"""A model whose FLOPs and gradient bytes can be set separately, to vary their ratio."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from harness.base.documents import Json
from harness.training.data import uniform

SIZES = {
    "nano": dict(d=64, layers=8, batch=4),
    "small": dict(d=256, layers=8, batch=16),
    "large": dict(d=4096, layers=8, batch=256),
}
KNOBS = dict(mflop=10.0, grad_mb=4.0)


class SyntheticLayer(nn.Module):
    """A layer that multiplies by one matrix ``repeats`` times.

    Its parameter ``ballast`` adds gradient bytes, but hardly any FLOPs.
    """

    def __init__(self, d: int, repeats: int, ballast: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, d) / d**0.5)
        self.ballast = nn.Parameter(torch.zeros(ballast))
        self.repeats = repeats

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.repeats):
            x = torch.tanh(x @ self.weight)
        return x + self.ballast.mean() * x.mean(1, keepdim=True)


def _shape(size: Mapping[str, Json]) -> tuple[int, int]:
    """Return the number of products and the number of elements of ballast of each layer."""
    d, layers = size["d"], size["layers"]
    repeats = max(1, round(size["mflop"] * 1e6 / (6 * d * d * layers)))
    total = size["grad_mb"] * 1e6 / 4
    return repeats, max(8, round(total / layers) - d * d)


def build(size: Mapping[str, Json]) -> nn.Sequential:
    repeats, ballast = _shape(size)
    return nn.Sequential(
        OrderedDict(
            (f"layer{i}", SyntheticLayer(size["d"], repeats, ballast))
            for i in range(size["layers"])
        )
    )


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return features and targets, both (B, d)."""
    return uniform(ids, size["d"]), uniform(ids + 1, size["d"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return (output.float() - targets).square().mean()


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 d^2 per product, or 4 d^2 for the first, whose input needs no gradient."""
    repeats, _ = _shape(size)
    return float(6.0 * size["d"] ** 2 * repeats * size["layers"] - 2.0 * size["d"] ** 2)
