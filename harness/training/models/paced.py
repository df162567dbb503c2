"""Simulated compute: layers wait instead of computing. Gradients are real and of any set size.

In mode ``wait`` all layers together wait ``step_ms`` per step. A layer waits a third of its time in
forward, a third for the gradient of its input and a third for the gradient of its weight. Overlap
with communication is real.

In mode ``schedule`` step i ends i x T after the first timed step begins. The period T is computed
from the efficiency that ``plant`` states for the world size ("2:0.95,4:0.9") and from random noise
that is drawn for each launch. Because the correct efficiency is known, this mode shows whether the
project measures it correctly. If a node is slowed on purpose, the times of its layers (or steps)
are longer in both modes.
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
#: The fraction of a core that this rank simulates; ``slow_down`` sets it.
_share = 1.0


def slow_down(share: float) -> None:
    """Lengthen all later waits, as if this rank had only the fraction ``share`` of a core."""
    global _share
    _share = share


class Wait(torch.autograd.Function):
    """An identity that waits in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        if forward_s:
            time.sleep(forward_s / _share)
        return x.clone()  # some schedules detach it in place, which views do not allow

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s / _share)
        return grads[0], None, None


class PacedLayer(nn.Module):
    """The layer y = x + x * mean(weight, 0).

    Each element of its gradient depends on the data of the rank.
    """

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
    """Build equal layers of ``layer_kb`` KiB that together wait ``step_ms`` per default batch.

    Raise SpecError for an unknown mode, and for a ``plant`` that cannot be read or that the mode
    does not use.
    """
    if size["mode"] not in MODES:
        raise SpecError(
            f"paced.mode={size['mode']}", expected=" or ".join(MODES), fix="paced.mode=schedule"
        )
    if planted(size) and size["mode"] != "schedule":
        raise SpecError(
            f"paced.plant={size['plant']} has no effect in mode wait",
            expected="paced.plant together with paced.mode=schedule",
            fix=f"--set paced.mode=schedule --set paced.plant={size['plant']}",
        )
    step_s = size["step_ms"] / 1e3
    if size["mode"] == "schedule":
        step_s *= 0.4  # leave time for communication in each period
    sample_s = step_s / size["layers"] / size["batch"]
    rows = size["layer_kb"] * 1024 // 4 // size["width"]
    return nn.Sequential(
        OrderedDict(
            (f"layer{i}", PacedLayer(rows, size["width"], sample_s)) for i in range(size["layers"])
        )
    )


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return features and targets, both (B, width)."""
    return uniform(ids, size["width"]), uniform(ids + 1, size["width"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return (output.float() - targets).square().mean()


def flops(size: Mapping[str, Json]) -> float:
    """Return 0, because the layers wait instead of computing."""
    return 0.0


def step_s(size: Mapping[str, Json]) -> float:
    """Return the least time of a step in seconds. It is the same on every device."""
    return float(size["step_ms"] / 1e3)


def planted(size: Mapping[str, Json]) -> dict[int, float]:
    """Return the efficiency that ``plant`` states for each world size.

    Raise SpecError if ``plant`` cannot be parsed.
    """
    try:
        pairs = [item.split(":") for item in size["plant"].split(",") if item]
        return {int(ranks): float(efficiency) for ranks, efficiency in pairs}
    except ValueError:
        raise SpecError(
            f"paced.plant={size['plant']} cannot be read",
            expected="pairs ranks:efficiency, separated by commas",
            fix="--set paced.mode=schedule --set paced.plant=2:0.95,4:0.9",
        ) from None


def period_s(size: Mapping[str, Json], case: CaseSpec, draw: int) -> float | None:
    """Return the period T of a step in seconds with the launch's noise, or None in mode ``wait``.

    T_N is T_1 / E_N in weak mode and T_1 / (N E_N) in strong mode, where E_N is the efficiency that
    ``plant`` states. ``draw`` seeds the noise.
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
