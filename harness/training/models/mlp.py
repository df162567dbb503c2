"""Wide MLP: few FLOPs per gradient byte, so communication limits its speed."""

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import labels, uniform

SIZES = {
    "nano": dict(d=64, layers=8, classes=16, batch=8),
    "small": dict(d=256, layers=8, classes=16, batch=16),
    "wide": dict(d=1024, layers=8, classes=16, batch=16),
    "8192": dict(d=8192, layers=8, classes=1024, batch=64),
}

#: How layers are split by width: in pairs, in which the second layer adds up the first one's parts.
TENSOR = {"units": "d", "cut": {"layer[02468].0": "column", "layer[13579].0": "row"}}


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build ``layers`` hidden layers of width ``d`` and a classifier."""
    d = size["d"]
    blocks = [
        (f"layer{i}", nn.Sequential(nn.Linear(d, d), nn.ReLU())) for i in range(size["layers"])
    ]
    return nn.Sequential(OrderedDict([*blocks, ("head", nn.Linear(d, size["classes"]))]))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return uniform features (B, d) and hashed classes (B,)."""
    return uniform(ids, size["d"]), labels(ids, size["classes"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), targets)


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 per weight, or 4 in the first layer, whose input needs no gradient."""
    d = size["d"]
    return float(6.0 * (size["layers"] * d * d + d * size["classes"]) - 2.0 * d * d)
