"""Residual CNN: compute limits its speed.

It uses group norm, because the result of batch norm would depend on the world size.
"""

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import images, labels

SIZES = {
    "nano": dict(width=8, blocks=[1, 1], image=16, classes=16, batch=4),
    "small": dict(width=16, blocks=[1, 1, 1], image=32, classes=16, batch=16),
    "imagenet": dict(width=64, blocks=[3, 4, 6, 3], image=112, classes=1000, batch=64),
}


class Residual(nn.Module):
    """Two 3x3 convolutions with a skip connection.

    The first convolution may halve the image and widen the channels.
    """

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, channels)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            self.skip = nn.Conv2d(before, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Head(nn.Module):
    """An average over the image and a classifier."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def _plan(size: Mapping[str, Json]) -> list[tuple[int, int, int, int]]:
    """Return (input channels, output channels, stride, output edge) of every residual block."""
    planned = []
    before = size["width"]
    edge = size["image"]
    for stage, count in enumerate(size["blocks"]):
        channels = size["width"] * 2**stage
        for i in range(count):
            stride = 2 if stage and i == 0 else 1
            edge //= stride
            planned.append((before, channels, stride, edge))
            before = channels
    return planned


def build(size: Mapping[str, Json]) -> nn.Sequential:
    blocks: list[tuple[str, nn.Module]] = [
        ("stem", nn.Sequential(nn.Conv2d(3, size["width"], 3, padding=1, bias=False), nn.ReLU()))
    ]
    plan = _plan(size)
    blocks += [(f"block{i}", Residual(a, b, s)) for i, (a, b, s, _) in enumerate(plan)]
    return nn.Sequential(OrderedDict([*blocks, ("head", Head(plan[-1][1], size["classes"]))]))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return images (B, 3, H, W) and classes (B,)."""
    return images(ids, size["image"]), labels(ids, size["classes"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), targets)


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 per multiply-add, or 4 in the first layer, whose input needs no gradient."""
    total = 4.0 * 27 * size["width"] * size["image"] ** 2
    for before, channels, stride, edge in _plan(size):
        macs = 9.0 * (before + channels) * channels * edge * edge
        if stride != 1 or before != channels:
            macs += before * channels * edge * edge
        total += 6 * macs
    return float(total + 6.0 * _plan(size)[-1][1] * size["classes"])
