"""A user's model: a small network with two linear layers."""

from torch import nn
from torch.nn import functional

from harness import labels, uniform

SIZES = {"small": dict(d=256, batch=32)}


def build(size):
    d = size["d"]
    return nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 10))


def batch(ids, size):  # each sample must be a pure function of its id
    return uniform(ids, size["d"]), labels(ids, 10)


def loss(output, targets):
    return functional.cross_entropy(output, targets)


def flops(size):  # FLOPs of the forward and backward pass of one sample
    return 4.0 * size["d"] ** 2 + 60.0 * size["d"]
