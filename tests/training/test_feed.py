"""Where batches come from changes nothing of what they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.spec import Catalogue, Data, Device, Site
from harness.training.context import load
from harness.training.describe import case_batching
from harness.training.rank.feed import AHEAD, make_feed

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(1,))


def batches(data: Data, steps: int) -> list[Any]:
    case = KNOWN.normalise(SITE.case("ddp/mlp-nano", data=data).at(1))
    loaded = load(KNOWN.files(case))
    batching = case_batching(loaded, case)
    ctx: Any = SimpleNamespace(
        case=case, batching=batching, shard=0, device=torch.device("cpu"), mesh=batching.mesh
    )
    feed = make_feed(loaded, ctx, steps)
    return [feed(step) for step in range(steps)]


@pytest.mark.parametrize("steps", [1, AHEAD, 2 * AHEAD + 3])
def test_all_ways_give_the_same_batches(steps: int) -> None:
    resident = batches(Data.RESIDENT, steps)
    for data in (Data.LOADED, Data.PREFETCHED):
        for a, b in zip(resident, batches(data, steps), strict=True):
            assert torch.equal(a.ids, b.ids) and torch.equal(a.inputs, b.inputs)
            assert torch.equal(a.targets, b.targets)


def test_what_breaks_in_the_thread_breaks_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no such sample")

    monkeypatch.setattr("harness.training.rank.feed.own_batch", broken)
    with pytest.raises(ValueError, match="no such sample"):
        batches(Data.PREFETCHED, 3)
