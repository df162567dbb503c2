"""Deterministic samples are generated on the device of their ids."""

from __future__ import annotations

import subprocess
import sys

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
    """The meta device refuses CPU tensors, as every GPU does."""
    ids = torch.zeros(3, dtype=torch.int64, device="meta")
    assert callable(make) and make(ids).device.type == "meta"


def test_preparation_by_an_agent_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_prepared", [])
    monkeypatch.setattr(intake, "CHUNK", 1 << 17)  # several pieces of the largest
    rows = [torch.randn(2, width) for width in (1, 300, 70_000, intake.PREPARED + 5)]
    before = [intake.row_hashes(x) for x in rows]
    digest = intake.digest(iter(rows))
    intake.prepare()
    assert len(intake._prepared[0]) == intake.PREPARED
    for x, hashes in zip(rows, before, strict=True):
        assert torch.equal(intake.row_hashes(x), hashes)
    assert intake.digest(iter(rows)) == digest


def test_preparation_starts_no_thread() -> None:
    """An agent forks, and its threads would be missing in the ranks."""
    program = (
        "import os, torch; torch.set_num_threads(4)\n"
        "from harness.training.observe import intake\n"
        "before = len(os.listdir('/proc/self/task')); intake.prepare()\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "0"
