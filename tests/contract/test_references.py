"""Losses of references are identical to the bit, whole or block by block."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.samples.references import mean_losses
from harness.base.documents import from_doc
from harness.cases import CaseSpec, Catalogue, Device, Precision, Site
from harness.launch.fleet import Fleet
from harness.launch.wire.messages import LaunchSpec, Refer
from harness.record import RankRecord
from harness.record.store import load_samples

STEPS = 5


@pytest.fixture
def losses(agent: Fleet, catalogue: Catalogue, tmp_path: Path) -> Callable[..., np.ndarray]:
    """Return ``losses(case, streamed)``, which returns the loss of every step."""
    count = itertools.count()

    def train(case: CaseSpec, streamed: bool) -> np.ndarray:
        in_turn = streamed or case.strategy == "pipeline"  # which has one shard
        alone = replace(case, world_size=1, nodes=(1,)) if in_turn else case
        out = tmp_path / "launches" / f"reference{next(count)}"
        spec = LaunchSpec(
            launch=out.name, case=alone, out=str(out), files=catalogue.files(case),
            task=Refer(of=case, steps=STEPS, streamed=streamed),
        )  # fmt: skip
        ended = agent.launch(spec, lambda step: None)
        assert all(end.finished for end in ended.ranks), ended
        paths = sorted(out.glob("rank?.json"))
        ranks = [from_doc(RankRecord, json.loads(path.read_text())) for path in paths]
        assert len(ranks) == alone.world_size
        return mean_losses([load_samples(tmp_path, out.name, rank) for rank in ranks])

    return train


@pytest.mark.parametrize(
    ("name", "world", "fields"),
    [
        ("fsdp/mlp-nano", 2, {}),
        ("fsdp/mlp-nano", 3, {}),
        ("fsdp/decoder-nano", 2, {"precision": Precision.AUTOCAST, "accumulate": 2}),
        ("ddp/resnet-nano", 2, {}),
        ("pipeline/mlp-nano", 2, {"knobs": {"pipeline.microbatches": 4}}),
    ],
)
def test_a_reference_in_blocks_has_the_losses_of_a_whole_one(
    losses: Callable[..., np.ndarray], catalogue: Catalogue, name: str, world: int, fields: Any
) -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=(world,))
    case = catalogue.normalise(site.case(name, **fields))
    wanted = losses(case, streamed=False)
    curve = losses(case, streamed=True)
    assert curve.tolist() == wanted.tolist() and len(set(wanted.tolist())) == STEPS
