"""The decoder on samples of unequal length: the rank with the longest sample finishes last."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import hashed
from harness.training.models import decoder

SIZES = {
    "nano": dict(d=64, layers=4, heads=4, kv=4, ff=256, vocab=256, seq=32, batch=8),
    "tiny": dict(d=128, layers=4, heads=4, kv=4, ff=512, vocab=512, seq=64, batch=4),
    "mini": dict(d=256, layers=4, heads=8, kv=8, ff=1024, vocab=1024, seq=64, batch=2),
    "base": dict(d=192, layers=6, heads=6, kv=6, ff=768, vocab=512, seq=128, batch=2),
    "124m": dict(d=768, layers=12, heads=12, kv=12, ff=3072, vocab=50304, seq=1024, batch=8),
}
KNOBS = dict(length_dist="uniform")
#: A batch is as long as its longest sample, so shapes differ between ranks and between steps.
RAGGED = True
#: The target of positions after the end of a sample; the loss ignores it.
PADDING = -100
#: The number of different lengths. They are the fractions i / GRAIN of the longest length, for i
#: from 1 to GRAIN; ``long_tail`` cubes the fractions.
GRAIN = 16

build = decoder.build


def lengths(ids: Tensor, size: Mapping[str, Json]) -> Tensor:
    """Return the number of tokens of each sample (int64), a pure function of the ids.

    Sample 0 has the longest length. With ``uniform`` all lengths are equally likely. With
    ``long_tail`` half of the samples have at most an eighth of the longest length.
    """
    share = 1 - (hashed(ids, 1)[:, 0] % GRAIN).float() / GRAIN  # in (0, 1]
    if (kind := size["length_dist"]) == "long_tail":
        share = share**3
    elif kind != "uniform":
        raise ValueError(f"length_dist is {kind!r}; expected uniform or long_tail")
    length = (share * int(size["seq"])).ceil().long()
    return torch.where(ids == 0, int(size["seq"]), length)


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return tokens and next tokens (B, longest), masked after the end of each sample."""
    inputs, targets = decoder.batch(ids, size)
    num_tokens = lengths(ids, size)
    longest = int(num_tokens.max())
    beyond = torch.arange(longest, device=num_tokens.device)[None] >= num_tokens[:, None]
    inputs = inputs[:, :longest]
    targets = targets[:, :longest]
    return inputs.masked_fill(beyond, 0), targets.masked_fill(beyond, PADDING)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the samples, where the loss of a sample is the mean of its tokens.

    Every sample therefore has the same weight, whatever its length and its rank.
    """
    losses = functional.cross_entropy(
        output.float().flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="none"
    ).view_as(targets)
    real = (targets != PADDING).sum(1).clamp(min=1)
    return (losses.sum(1) / real).mean()


def floor(size: Mapping[str, Json]) -> float:
    return decoder.floor(size)


def _mean(size: Mapping[str, Json], power: int) -> float:
    """Return the mean of (length of a sample) ** ``power`` over all samples."""
    share = 1 - torch.arange(GRAIN).double() / GRAIN
    share = share**3 if size["length_dist"] == "long_tail" else share
    return float((share * int(size["seq"])).ceil().pow(power).mean())


def tokens(size: Mapping[str, Json]) -> int:
    return round(_mean(size, 1))


def flops(size: Mapping[str, Json]) -> float:
    """Return the mean FLOPs of a sample in the decoder, without the FLOPs of padding."""
    s = int(size["seq"])
    d = size["d"]
    layers = size["layers"]
    attention = 12.0 * layers * d
    weights = (decoder.flops(size) - attention * s * s) / s
    return float(weights * _mean(size, 1) + attention * _mean(size, 2))
