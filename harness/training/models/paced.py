"""Stand-in that waits for set times instead of computing; real gradients of set sizes.

Mode ``wait``: each layer waits its share of ``step_ms``, a third in forward, a third for the
gradient of its input, a third for that of its weight; overlap with communication is real. Mode
``schedule``: step i ends at window start + i x T, where T carries the efficiency that ``plant``
states for the world size ("2:0.95,4:0.9"), and a seeded launch noise: the source of truth that
checks the whole instrument. On a node that is slow on purpose both last longer.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.base.documents import Json
from harness.base.errors import SpecError
from harness.cases import CaseSpec, Mesh, Mode, batching
from harness.training.data import uniform

SIZES = {
    "thin": dict(width=64, layers=16, layer_kb=32, batch=16),  # enough layers for 16 stages
    "small": dict(width=64, layers=8, layer_kb=128, batch=8),
}
MODES = ("wait", "schedule")
KNOBS = dict(mode="wait", step_ms=40.0, plant="", noise=0.01)
STAND_IN = "paced"
AT_ONCE = dict(step_ms=0.0)
#: What this rank gets of a core, as ``slow_down`` was told.
_share = 1.0


def slow_down(share: float) -> None:
    """Whatever is waited for from now on lasts as long as with that share of a core."""
    global _share
    _share = share


class Wait(torch.autograd.Function):
    """Identity that waits in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        if forward_s:
            time.sleep(forward_s / _share)
        return x.clone()  # no view: schedules that split backward detach it in place

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s / _share)
        return grads[0], None, None


class PacedLayer(nn.Module):
    """y = x + x * mean(weight, 0): every gradient element depends on the rank's own data."""

    def __init__(self, rows: int, width: int, sample_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width) * 0.1)
        self.sample_s = sample_s

    def forward(self, x: Tensor) -> Tensor:
        wait_s = 0.0 if x.device.type == "meta" else self.sample_s * x.shape[0]
        if wait_s == 0:
            return x + x * self.weight.mean(0)
        weight = Wait.apply(self.weight.mean(0), 0.0, wait_s / 3)  # type: ignore[no-untyped-call]
        return Wait.apply(x + x * weight, wait_s / 3, wait_s / 3)  # type: ignore[no-any-return,no-untyped-call]


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Equal layers of ``layer_kb`` KiB each; the waits of a default batch add up to ``step_ms``.

    SpecError for a mode that is none, and a plant that is none or that nothing keeps to.
    """
    if size["mode"] not in MODES:
        raise SpecError(
            f"paced.mode={size['mode']}", expected=" or ".join(MODES), fix="paced.mode=schedule"
        )
    if planted(size) and size["mode"] != "schedule":
        raise SpecError(
            f"paced.plant={size['plant']}: a model that waits keeps to no plant",
            expected="paced.mode=schedule beside it",
            fix=f"--set paced.mode=schedule --set paced.plant={size['plant']}",
        )
    step_s = size["step_ms"] / 1e3
    if size["mode"] == "schedule":
        step_s *= 0.4  # room for communication before the deadline
    sample_s = step_s / size["layers"] / size["batch"]
    rows = size["layer_kb"] * 1024 // 4 // size["width"]
    return nn.Sequential(
        OrderedDict(
            (f"layer{i}", PacedLayer(rows, size["width"], sample_s)) for i in range(size["layers"])
        )
    )


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Features and targets, both (B, width)."""
    return uniform(ids, size["width"]), uniform(ids + 1, size["width"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return (output.float() - targets).square().mean()


def flops(size: Mapping[str, Json]) -> float:
    """None worth counting: it waits."""
    return 0.0


def step_s(size: Mapping[str, Json]) -> float:
    """The least time of a step, whatever computes it."""
    return float(size["step_ms"] / 1e3)


def planted(size: Mapping[str, Json]) -> dict[int, float]:
    """The efficiency of each world that ``plant`` names; SpecError where it cannot be read."""
    try:
        pairs = [item.split(":") for item in size["plant"].split(",") if item]
        return {int(ranks): float(efficiency) for ranks, efficiency in pairs}
    except ValueError:
        raise SpecError(
            f"paced.plant={size['plant']}",
            expected="ranks:efficiency, with commas between them",
            fix="--set paced.mode=schedule --set paced.plant=2:0.95,4:0.9",
        ) from None


def period_s(size: Mapping[str, Json], case: CaseSpec, draw: int) -> float | None:
    """Mode ``schedule``: the period T of a step for this world, with the launch's noise.

    T_N = T_1 / E_N in weak mode, T_1 / (N E_N) in strong mode.
    """
    if size["mode"] != "schedule":
        return None
    efficiency = 1.0 if case.plain else planted(size).get(case.world_size, 1.0)
    base = size["step_ms"] / 1e3
    if case.mode is Mode.STRONG:
        base *= (
            batching(case, size["batch"], Mesh({})).global_batch / size["batch"] / case.world_size
        )
    generator = torch.Generator().manual_seed(draw)
    noise = float(torch.randn((), generator=generator)) * size["noise"]
    return float(base / efficiency * (1 + noise) / _share)
