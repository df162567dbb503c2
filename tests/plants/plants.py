"""The paced simulated workload with injected causes of lost time, each known to the millisecond.

``late_ms``: the last rank computes longer. ``stall_ms``: the host does something outside of all
profiler ranges. ``slow_ms``: every rank computes longer if there is more than one. ``uneven_ms``:
the first block computes longer, which makes a pipeline's first stage the slow one. ``data_ms``:
time to make a batch. All are per step, except the last, which is per batch. ``stages`` is the
number of pipeline stages, each of which sees every sample.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor, nn

from harness.base.documents import Json
from harness.training.models import paced
from harness.training.models.paced import flops, loss  # noqa: F401

SIZES = {"small": dict(width=64, layers=4, layer_kb=256, batch=8)}
KNOBS = dict(
    step_ms=40.0, late_ms=0.0, stall_ms=0.0, slow_ms=0.0, uneven_ms=0.0, data_ms=0.0, stages=1
)
STAND_IN = "paced"


class Stalled(nn.Module):
    """A layer before which the host idles for ``idle_s`` a sample."""

    def __init__(self, layer: nn.Module, idle_s: float) -> None:
        super().__init__()
        self.layer, self.idle_s = layer, idle_s

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "meta":
            time.sleep(self.idle_s * len(x))
        return self.layer(x)


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """The paced blocks, the first one with what is planted."""
    knob = {k: size[k] / 1e3 for k in KNOBS}
    model = paced.build({**paced.KNOBS, **size})
    rank, world = 0, 1
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    compute = knob["uneven_ms"] + knob["slow_ms"] * (world > 1)
    if world > 1 and rank == world - 1:
        compute += knob["late_ms"]
    samples = size["batch"] * size["stages"]  # of a rank's step
    model[0].sample_s += compute / samples  # one longer wait, as each wake-up costs time
    first = Stalled(model[0], knob["stall_ms"] / samples)
    return nn.Sequential(OrderedDict([("layer0", first), *list(model.named_children())[1:]]))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """The paced batch, which takes ``data_ms`` to make."""
    if ids.device.type != "meta":
        time.sleep(size["data_ms"] / 1e3)
    return paced.batch(ids, size)
