"""Small models with common features: buffers, frozen parameters and unused parameters."""

import torch
from torch import nn
from torch.nn import functional

from harness import labels, uniform

SIZES = {"nano": dict(d=64, classes=16, batch=8)}
KNOBS = dict(kind="mask")


class Masked(nn.Module):
    """Attention under a causal mask that is a buffer, as in nanoGPT."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.register_buffer("mask", torch.tril(torch.ones(d // 4, d // 4)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x.view(len(x), -1, 4)).chunk(3, -1)
        seen = (q @ k.transpose(1, 2)).masked_fill(self.mask == 0, float("-inf"))
        return (seen.softmax(-1) @ v).flatten(1)


class Normed(nn.Module):
    """Batch norm, whose statistics are buffers that forward passes change."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(self.conv(x.view(len(x), 1, 8, -1))).relu()
        return self.down(seen.flatten(1))


class Counting(nn.Module):
    """A buffer that grows with every forward pass by what the rank saw, and that is read."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(0.5 * x.abs().mean())
        return self.linear(x).relu() * (1 + self.mean)


class Spare(nn.Module):
    """A layer that no output depends on."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def build(size):
    d = size["d"]
    frozen = nn.Linear(d, d)
    frozen.requires_grad_(False)
    kinds = {
        "mask": Masked(d),
        "batch norm": Normed(d),
        "buffer": Counting(d),
        "frozen": frozen,
        "frozen within": nn.Sequential(nn.Linear(d, d), nn.ReLU(), frozen, nn.ReLU()),
        "unused": Spare(d),
    }
    return nn.Sequential(kinds[size.get("ordinary.kind", size["kind"])], nn.Linear(d, 16))


def batch(ids, size):
    return uniform(ids, size["d"]), labels(ids, size["classes"])


def loss(output, targets):
    return functional.cross_entropy(output, targets)


def flops(size):
    return 1.0
