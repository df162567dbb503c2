"""Deterministic content: it is made where the ids are."""

from __future__ import annotations

import pytest
import torch

from harness.training import data
from harness.training.observe import intake


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: data.hashed(ids, 4),
        lambda ids: data.uniform(ids, 4),
        lambda ids: data.images(ids, 8),
        lambda ids: data.labels(ids, 10),
        lambda ids: intake.row_hashes(torch.zeros(3, 70_000, device=ids.device)),
    ],
)
def test_content_is_made_on_the_device_of_its_ids(make: object) -> None:
    """The meta device refuses a tensor of the CPU, as every GPU does."""
    ids = torch.zeros(3, dtype=torch.int64, device="meta")
    assert callable(make) and make(ids).device.type == "meta"
