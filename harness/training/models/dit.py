"""Diffusion transformer: patches of noisy latents in blocks modulated by a time and a class."""

import math
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import hashed, uniform
from harness.training.models.vit import EncoderBlock

#: Sizes from Peebles and Xie (2023), table 1. Latents have 4 channels, and their edges are 8 times
#: shorter than the edges of the image.
SIZES = {
    "nano": dict(d=64, layers=2, heads=4, patch=2, latent=8, classes=16, batch=8),
    "tiny": dict(d=192, layers=4, heads=3, patch=2, latent=16, classes=16, batch=8),
    "s2": dict(d=384, layers=12, heads=6, patch=2, latent=32, classes=1000, batch=64),
    "b2": dict(d=768, layers=12, heads=12, patch=2, latent=32, classes=1000, batch=32),
    "l2": dict(d=1024, layers=24, heads=16, patch=2, latent=32, classes=1000, batch=16),
    "xl2": dict(d=1152, layers=28, heads=16, patch=2, latent=32, classes=1000, batch=16),
    "xl2-512": dict(d=1152, layers=28, heads=16, patch=2, latent=64, classes=1000, batch=4),
}
#: All blocks between the patches and the head are identical.
ALIKE = True
CHANNELS = 4
#: The number of sines and cosines that encode a time step, and the number of time steps.
WAVES = 256
TIMES = 1000


class Conditioned(nn.Module):
    """Embed a latent, a time and a class as tokens of shape (B, 1 + patches, d).

    The input has the shape (B, C H W + 2). The first token is the sum of the embeddings of time and
    class, and modulates all blocks.
    """

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        d, patch = size["d"], size["patch"]
        self.latent = size["latent"]
        self.classes = size["classes"]
        self.project = nn.Conv2d(CHANNELS, d, patch, stride=patch)
        self.times = nn.Sequential(nn.Linear(WAVES, d), nn.SiLU(), nn.Linear(d, d))
        self.labels = nn.Embedding(size["classes"] + 1, d)  # the last one stands for no class
        self.positions = nn.Parameter(torch.empty(1, _patches(size), d))
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        edge = self.latent
        image, time, label = x.split((CHANNELS * edge * edge, 1, 1), 1)
        patches = self.project(image.view(-1, CHANNELS, edge, edge)).flatten(2).transpose(1, 2)
        steps = torch.arange(WAVES // 2, device=x.device)
        angles = time.float() * torch.exp(-math.log(10_000) * steps / (WAVES // 2))
        waves = torch.cat((angles.cos(), angles.sin()), 1).to(x.dtype)
        known = label[:, 0].long().clamp(max=self.classes)
        condition = self.times(waves) + self.labels(known)
        return torch.cat((condition[:, None], patches + self.positions), 1)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise tokens (B, S, d), and scale and shift them by vectors (B, d)."""
    normal = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
    return normal * (1 + scale[:, None]) + shift[:, None]


class DiTBlock(EncoderBlock):
    """Attention and feed-forward that the first token shifts, scales and gates (adaLN)."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__(d, heads)
        del self.norm1, self.norm2  # adaLN uses norms without weights
        self.modulation = nn.Linear(d, 6 * d)

    def forward(self, x: Tensor) -> Tensor:
        condition, tokens = x[:, :1], x[:, 1:]
        parts = self.modulation(functional.silu(condition[:, 0])).chunk(6, 1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        tokens = tokens + gate1[:, None] * self.attended(modulated(tokens, shift1, scale1))
        tokens = tokens + gate2[:, None] * self.fed_forward(modulated(tokens, shift2, scale2))
        return torch.cat((condition, tokens), 1)


class Unpatched(nn.Module):
    """Map tokens (B, 1 + S, d) to the noise and its variance in each patch, (B, S, patch^2 2 C)."""

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        d = size["d"]
        self.modulation = nn.Linear(d, 2 * d)
        self.fc = nn.Linear(d, size["patch"] ** 2 * 2 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale = self.modulation(functional.silu(x[:, 0])).chunk(2, 1)
        noise: Tensor = self.fc(modulated(x[:, 1:], shift, scale))
        return noise


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build patches, blocks and head.

    Gates have torch's default initialisation. If they were zero, as in the paper, the weights of
    the blocks would have no gradients in the first step.
    """
    blocks = [(f"block{i}", DiTBlock(size["d"], size["heads"])) for i in range(size["layers"])]
    named = [("patches", Conditioned(size)), *blocks, ("head", Unpatched(size))]
    return nn.Sequential(OrderedDict(named))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return noisy latents with a time and a class (B, C H W + 2), and their noise by patch.

    The noise has the shape (B, S, p^2 C). A latent is a mixture of noise and a constant picture.
    The class determines the picture, and the time determines the weight of the noise.
    """
    edge, patch = size["latent"], size["patch"]
    noise = uniform(ids, CHANNELS * edge * edge)
    drawn = hashed(ids + 7, 2)
    time = drawn[:, :1] % TIMES
    label = drawn[:, 1:] % size["classes"]
    share = (time + 1).float() / TIMES
    picture = (label.float() + 1) / size["classes"]
    noisy = share.sqrt() * noise + (1 - share).sqrt() * picture
    cut = noise.view(-1, CHANNELS, edge // patch, patch, edge // patch, patch)
    targets = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return torch.cat((noisy, time.float(), label.float()), 1), targets.contiguous()


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of the noise plus the mean square of the variance outputs.

    The second term trains the variance outputs towards 0, which is the logarithm of 1.
    """
    noise, variance = output.float().chunk(2, -1)
    return functional.mse_loss(noise, targets.float()) + variance.square().mean()


def tokens(size: Mapping[str, Json]) -> int:
    return _patches(size)


def _patches(size: Mapping[str, Json]) -> int:
    return int(size["latent"] // size["patch"]) ** 2


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 per multiply-add (with attention), or 4 if the input needs no gradient."""
    d, layers = size["d"], size["layers"]
    s = tokens(size)
    square = size["patch"] ** 2
    entry = 4.0 * (s * CHANNELS * square * d + WAVES * d) + 6.0 * d * d
    blocks = layers * (6.0 * (12 * d * d * s + 6 * d * d) + 12.0 * s * s * d)
    return float(entry + blocks + 6.0 * (s * d * square * 2 * CHANNELS + 2 * d * d))
