"""Twins are the same training at smaller sizes: the smallest comes first, the case itself last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cases import Device, Mode, Site
from harness.cases.twins import candidates, fewer

SITE = Site(device=Device.CPU, backend="gloo", nodes=(4,))
SIZES = {"nano": {"batch": 4}, "tiny": {"batch": 8}, "8b": {"batch": 1}}
CASE = SITE.case("pipeline/decoder-8b", precision="bf16", knobs={"pipeline.microbatches": 16})


def test_a_twin_differs_only_in_size_and_batch() -> None:
    tried = [*candidates(CASE, SIZES, {})]
    assert tried[0].size == "nano" and tried[-1] == CASE
    for twin in tried:
        same = replace(twin, size=CASE.size, micro_batch=CASE.micro_batch, seq_len=CASE.seq_len)
        assert same == CASE


def test_a_twin_of_a_strong_case_scales_the_global_batch_with_the_world() -> None:
    strong = replace(CASE, mode=Mode.STRONG, global_batch=64, accumulate=2)
    batches = [twin.global_batch for twin in candidates(strong, SIZES, {})]
    assert batches[:4] == [4 * 8, 8 * 8, 16 * 8, 32 * 8], "4 ranks x 2 accumulation steps"
    assert batches[-1] == 64


def test_nothing_larger_than_the_case_is_tried() -> None:
    small = replace(CASE, size="tiny")
    assert {twin.size for twin in candidates(small, SIZES, {})} == {"nano", "tiny"}


@pytest.mark.parametrize(("asked", "twin"), [(16, {"pipeline.microbatches": 4}), (4, {}), (2, {})])
def test_knobs_of_a_twin_do_not_exceed_those_in_the_head(asked: int, twin: dict[str, int]) -> None:
    assert fewer("pipeline", {"microbatches": asked}, {"microbatches": 4}) == twin
    (first, *_) = candidates(CASE, SIZES, twin)
    assert first.knobs["pipeline.microbatches"] == (4 if twin else 16)
