"""The closed form of memory, compared with torch's tracker of allocations on fake tensors."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from harness.cases import Catalogue, Device, Site
from harness.training.context import CAST, build_model, load, make_batch
from harness.training.describe import describe

KNOWN = Catalogue()
SITE = Site(device=Device.CUDA, backend="nccl", nodes=(1,))


def tracked(name: str, fields: dict[str, Any]) -> tuple[int, int]:
    """Return (closed form, tracked peak) of the second step of a training run with AdamW."""
    case = KNOWN.normalise(SITE.case(name, **fields))
    loaded = load(KNOWN.files(case))
    answer = describe(loaded, case)
    assert answer.expected is not None
    samples = case.micro_batch or loaded.size(case)["batch"]
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build_model(loaded, case, 0)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
        inputs, targets = (
            torch.zeros(samples, *like.shape[1:], dtype=like.dtype)
            for like in (batch.inputs, batch.targets)
        )
        tracker = MemTracker()
        tracker.track_external(model, optimizer, inputs, targets)
        dtype = CAST.get(case.precision)
        with tracker:
            for step in range(2):
                cast = torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext()
                with cast:
                    loss = loaded.model.loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if not step:
                    tracker.reset_mod_stats()
        peak = max(v["Total"] for v in tracker.get_tracker_snapshot("peak").values())
    return answer.expected.memory_bytes, peak


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("single/decoder-nano", {}),
        ("single/mlp-8192", {"precision": "autocast"}),
        *[
            pytest.param(f"single/decoder-{size}", fields, marks=pytest.mark.full)
            for size, fields in (
                ("124m", {"precision": "autocast"}), ("tiny", {}), ("mini", {}), ("base", {}), ("124m", {}), ("175m", {}),
                ("175m", {"precision": "autocast", "micro_batch": 64}), ("350m", {}),
                ("350m", {"precision": "autocast", "micro_batch": 8, "seq_len": 2048}),
                ("1b3", {"precision": "autocast", "checkpoint": True}),
            )
        ],
    ],
)  # fmt: skip
def test_the_closed_form_is_within_a_tenth_of_the_tracked_peak(
    name: str, fields: dict[str, Any]
) -> None:
    form, peak = tracked(name, fields)
    assert form == pytest.approx(peak, rel=0.10)
