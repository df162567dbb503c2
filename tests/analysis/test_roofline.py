"""The roofline of a step, compared with arithmetic and with published training runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.roofline import roofline
from harness.cases import Catalogue, Compiled, Device, Precision, Site
from harness.host.devices import sheets
from harness.record import Product, Work
from harness.training.context import load
from harness.training.work import work

H100 = sheets()["h100"]


def test_a_product_is_limited_by_its_flops_or_its_bytes() -> None:
    wide = Product(kind="product", flops=989.4e9, moved_bytes=1, dtype="bfloat16", count=2)
    thin = Product(kind="attention", flops=1.0, moved_bytes=3_350_000_000, dtype="bfloat16")
    plain = Product(kind="product", flops=66.9e9, moved_bytes=1, dtype="float64")
    step = Work(
        samples=1, products=(wide, thin, plain), moved_bytes=335 * 10**7, update_bytes=67 * 10**8
    )
    bound = roofline(step, H100, shards=2)
    assert bound is not None
    assert bound.products_s == pytest.approx(2e-3 + 1e-3), (
        "the data sheet lists no float64 rate, so the float32 rate applies"
    )
    assert (bound.attention_s, bound.memory_s, bound.update_s) == pytest.approx((1e-3, 1e-3, 1e-3))
    assert bound.step_s == pytest.approx(6e-3)
    assert roofline(step, replace(H100, memory_gb_s=None)) is None


#: Published tokens/s per GPU for Llama 3 8B, sequences of 8192, FSDP2 in bf16, selective
#: checkpointing of operators: torchtitan's docs/performance.md, of 2024 (64 A100 of 80 GB, batch 1)
#: and of 2025 (8 H100 with 2.4 TB/s and 500 W, batch 2, eager and compiled).
PUBLISHED = {
    "A100": (sheets()["a100"], 1, Compiled.NO, 2973.0),
    "H100": (replace(H100, memory_gb_s=2400.0), 2, Compiled.NO, 5762.0),
    "H100 compiled": (replace(H100, memory_gb_s=2400.0), 2, Compiled.INDUCTOR, 6667.0),
}


@pytest.mark.full
@pytest.mark.parametrize("published", PUBLISHED)
def test_published_training_runs_reach_40_to_75_percent_of_the_roofline(published: str) -> None:
    sheet, batch, compiled, tokens_per_s = PUBLISHED[published]
    known = Catalogue()
    case = known.normalise(
        Site(device=Device.CUDA, backend="nccl", nodes=(1,)).case(
            "single/decoder-llama-8b",
            seq_len=8192, micro_batch=batch, precision=Precision.BF16,
            compiled=compiled, checkpoint=True, selective=True,
        )
    )  # fmt: skip
    bound = roofline(work(load(known.files(case)), case, batch), sheet, 64)
    assert bound is not None
    assert 0.4 < tokens_per_s * bound.step_s / (8192 * batch) < 0.75
