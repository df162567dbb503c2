"""VGG-like CNN: large fully connected layers make communication limit its speed."""

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import images, labels

SIZES = {
    "nano": dict(width=8, fc=128, image=32, classes=16, batch=4),
    "small": dict(width=16, fc=1024, image=32, classes=16, batch=8),
    "large": dict(width=64, fc=4096, image=112, classes=1000, batch=32),
}


def _channels(size: Mapping[str, Json]) -> list[int]:
    """Return the channels of the four convolutions."""
    return [size["width"] * 2**i for i in range(4)]


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build four convolutions, each of which halves the image, and three fully connected layers."""
    blocks: list[tuple[str, nn.Module]] = []
    before = 3
    edge = size["image"]
    for i, channels in enumerate(_channels(size)):
        conv = nn.Conv2d(before, channels, 3, padding=1)
        blocks.append((f"conv{i}", nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2))))
        before = channels
        edge = edge // 2
    flat = before * edge * edge
    fc = size["fc"]
    blocks.append(("fc0", nn.Sequential(nn.Flatten(), nn.Linear(flat, fc), nn.ReLU())))
    blocks.append(("fc1", nn.Sequential(nn.Linear(fc, fc), nn.ReLU())))
    blocks.append(("head", nn.Linear(fc, size["classes"])))
    return nn.Sequential(OrderedDict(blocks))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return images (B, 3, H, W) and classes (B,)."""
    return images(ids, size["image"]), labels(ids, size["classes"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), targets)


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 per multiply-add, or 4 in the first layer, whose input needs no gradient."""
    before = 3
    edge = size["image"]
    total = 0.0
    first = 0.0
    for channels in _channels(size):
        macs = 9.0 * before * channels * edge * edge
        first = first or macs
        total += 6 * macs
        before = channels
        edge = edge // 2
    fc = size["fc"]
    total += 6.0 * (before * edge * edge * fc + fc * fc + fc * size["classes"])
    return float(total - 2 * first)
