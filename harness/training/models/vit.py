"""Vision transformer: images as patches, with one class token and pre-norm blocks."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import images, labels

#: Sizes from Dosovitskiy et al. (2021), table 1.
SIZES = {
    "nano": dict(d=64, layers=2, heads=4, patch=4, image=16, classes=16, batch=8),
    "tiny": dict(d=192, layers=4, heads=3, patch=4, image=32, classes=16, batch=8),
    "b16": dict(d=768, layers=12, heads=12, patch=16, image=224, classes=1000, batch=32),
    "l16": dict(d=1024, layers=24, heads=16, patch=16, image=224, classes=1000, batch=32),
    "h14": dict(d=1280, layers=32, heads=16, patch=14, image=224, classes=1000, batch=16),
}
#: All blocks between the patches and the head are identical.
ALIKE = True


class Patches(nn.Module):
    """Embed images (B, 3, H, W) as a class token and a token per patch: (B, 1 + patches, d)."""

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        d, patch = size["d"], size["patch"]
        self.project = nn.Conv2d(3, d, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        self.positions = nn.Parameter(torch.empty(1, 1 + _patches(size), d))
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.project(x).flatten(2).transpose(1, 2)
        token = self.token.expand(x.shape[0], -1, -1)
        return torch.cat((token, patches), 1) + self.positions


class EncoderBlock(nn.Module):
    """Pre-norm attention to all tokens and a feed-forward layer four times as wide."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(d, 1e-6)
        self.norm2 = nn.LayerNorm(d, 1e-6)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        return x + self.fed_forward(self.norm2(x))

    def attended(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        parts = self.qkv(x).view(b, s, 3, self.heads, d // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        output = functional.scaled_dot_product_attention(q, k, v)
        mixed: Tensor = self.out(output.transpose(1, 2).reshape(b, s, d))
        return mixed

    def fed_forward(self, x: Tensor) -> Tensor:
        wide: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return wide


class Classifier(nn.Module):
    """Map tokens (B, S, d) to logits (B, classes) of the class token."""

    def __init__(self, d: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d, 1e-6)
        self.fc = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.norm(x)[:, 0])
        return logits


def build(size: Mapping[str, Json]) -> nn.Sequential:
    d = size["d"]
    blocks = [(f"block{i}", EncoderBlock(d, size["heads"])) for i in range(size["layers"])]
    head = ("head", Classifier(d, size["classes"]))
    return nn.Sequential(OrderedDict([("patches", Patches(size)), *blocks, head]))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return images (B, 3, H, W) and classes (B,)."""
    return images(ids, size["image"]), labels(ids, size["classes"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), targets)


def tokens(size: Mapping[str, Json]) -> int:
    return 1 + _patches(size)


def _patches(size: Mapping[str, Json]) -> int:
    return int(size["image"] // size["patch"]) ** 2


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 per multiply-add, including attention.

    The embedding of the patches counts 4, because its input needs no gradient.
    """
    d, layers = size["d"], size["layers"]
    s = tokens(size)
    embedding = 4.0 * _patches(size) * 3 * size["patch"] ** 2 * d
    blocks = layers * (6.0 * 12 * d * d * s + 12.0 * s * s * d)
    return float(embedding + blocks + 6.0 * d * size["classes"])
