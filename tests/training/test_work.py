"""The counted work of a step agrees with torch's counter and with arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from harness.cases import CaseSpec, Catalogue, Compiled, Device, Precision, Site
from harness.record import Work
from harness.training.context import load
from harness.training.work import again_flops, work

KNOWN = Catalogue()


def counted(name: str, samples: int, **fields: Any) -> tuple[CaseSpec, Work]:
    site = Site(device=Device.CUDA, backend="nccl", nodes=(1,))
    case = KNOWN.normalise(site.case(f"single/{name}", micro_batch=samples, **fields))
    return case, work(load(KNOWN.files(case)), case, samples)


def products(step: Work) -> float:
    return sum(p.flops * p.count for p in step.products if p.kind == "product")


@pytest.mark.parametrize("name", ["decoder-nano", "mlp-nano", "resnet-nano", "moe-nano"])
def test_products_are_those_that_torch_counts(name: str) -> None:
    case, step = counted(name, 3)
    loaded = load(KNOWN.files(case))
    model = loaded.model.build(loaded.size(case))
    inputs, targets = loaded.model.batch(torch.arange(3), loaded.size(case))
    with FlopCounterMode(display=False) as counter:
        loaded.model.loss(model(inputs), targets).backward()
    assert products(step) == counter.get_total_flops()


@pytest.mark.parametrize("every", [1, 2])
def test_recomputed_flops_equal_those_of_torchs_checkpoints(every: int) -> None:
    """The comparison uses real data and torch's checkpoint function around the blocks."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(1,))
    fields = {"checkpoint": True, "checkpoint_every": every}
    case = KNOWN.normalise(site.case("single/decoder-nano", **fields))
    loaded = load(KNOWN.files(case))
    model = loaded.model.build(loaded.size(case))
    inputs, targets = loaded.model.batch(torch.arange(1), loaded.size(case))
    flops = []
    for again in (False, True):
        with FlopCounterMode(display=False) as counter:
            x = inputs
            for place, block in enumerate(model):
                kept = not again or place % every
                x = block(x) if kept else checkpoint(block, x, use_reentrant=False)
            loaded.model.loss(x, targets).backward()
        flops.append(counter.get_total_flops())
    once, twice = flops
    assert again_flops(loaded, case) == twice - once > 0.1 * once
    plain = replace(case, checkpoint=False, checkpoint_every=1)
    assert again_flops(loaded, plain) == 0


def test_attention_is_causal_and_its_backward_computes_the_scores_again() -> None:
    case, step = counted("decoder-nano", 2)
    size = load(KNOWN.files(case)).size(case)
    scores = 2 * size["heads"] * size["seq"] ** 2 / 2
    forward = 4 * scores * size["d"] / size["heads"] * size["layers"]
    attention = [p for p in step.products if p.kind == "attention"]
    assert sum(p.flops * p.count for p in attention) == pytest.approx(3.5 * forward)


def test_settings_change_the_moved_bytes() -> None:
    _, eager = counted("decoder-mini", 2)
    _, compiled = counted("decoder-mini", 2, compiled=Compiled.INDUCTOR)
    _, narrow = counted("decoder-mini", 2, precision=Precision.BF16)
    _, again = counted("decoder-mini", 2, checkpoint=True)
    assert products(eager) == products(compiled) == products(narrow)
    assert compiled.moved_bytes < 0.6 * eager.moved_bytes
    assert narrow.moved_bytes < 0.7 * eager.moved_bytes
    assert narrow.update_bytes == eager.update_bytes / 2
    assert products(again) > 1.15 * products(eager), "forward is computed again"
    assert {p.dtype for p in eager.products} == {"float32"}
    _, tensor_cores = counted("decoder-mini", 2, tf32=True)
    assert {p.dtype for p in tensor_cores.products if p.kind == "product"} == {"tf32"}


def test_accumulated_batches_multiply_the_work() -> None:
    _, once = counted("mlp-nano", 4)
    _, twice = counted("mlp-nano", 4, accumulate=2)
    assert products(twice) == 2 * products(once)
    assert (twice.samples, twice.update_bytes) == (8, once.update_bytes)
