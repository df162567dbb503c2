"""A setting without effect is an error: working ones are recognised, and injected bugs detected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from harness.analysis.samples import figures
from harness.cases import Attention, CaseSpec, Compiled, Precision, Stepping
from harness.record import Purpose
from harness.record.store import Samples
from harness.training.tuning import float8, kernels
from harness.training.tuning.recompute import OnHost
from harness.training.tuning.scaling import Scaled

FULL = pytest.mark.full
#: Bug -> the fields of a case with this bug, and the check that detects it.
PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "compile fell back": (
        dict(bug="fell_back", compiled=Compiled.AOT_EAGER), "took_effect.compiled",
    ),
    "attention fell back": (
        dict(bug="other_kernel", attention=Attention.MATH), "took_effect.attention",
    ),
    "another optimizer": (
        dict(bug="other_optimizer", stepping=Stepping.FOREACH), "took_effect.stepping",
    ),
    "nothing is computed again": (
        dict(bug="unwrapped", checkpoint=True), "took_effect.checkpoint",
    ),
    "products in 32 bits": (dict(bug="fell_back", precision=Precision.FP8), "took_effect.precision"),
    "autocast does nothing": (dict(bug="not_cast", precision=Precision.AUTOCAST), "compute_dtype"),
    "stepped before unscaling": (
        dict(bug="stepped_first", precision=Precision.FP16), "parameters_after_4",
    ),
}  # fmt: skip


#: The slowest ones are ``-m full``.
LONG = ("compile fell back", "products in 32 bits", "stepped before unscaling")


@pytest.mark.few(2)
@pytest.mark.parametrize("plant", [pytest.param(p, marks=[FULL] * (p in LONG)) for p in PLANTED])
def test_a_setting_without_effect_is_found(launch: Any, plant: str) -> None:
    asked, check = PLANTED[plant]
    fields = {k: v for k, v in asked.items() if k != "bug"}
    world = launch(
        "mutant_tuned/decoder-nano", 2, knobs={"mutant_tuned.bug": asked["bug"]}, **fields
    )
    assert world.cause is None
    assert any(c.name.endswith(check) for c in world.failed), world.failed
    detail = next(c.detail for c in world.failed if c.name.endswith(check))
    assert "requested" in detail or not check.startswith("took_effect")


@pytest.mark.full
@pytest.mark.parametrize("plant", PLANTED)
def test_without_the_bug_it_passes(launch: Any, plant: str) -> None:
    fields = {k: v for k, v in PLANTED[plant][0].items() if k != "bug"}
    world = launch("mutant_tuned/decoder-nano", 2, **fields)
    assert world.cause is None and not world.failed, (world.cause, world.failed)
    assert any(c.name.startswith(("took_effect", "compute_dtype")) for c in world.ranks[0].checks)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        pytest.param("fsdp/decoder-nano", dict(compiled=Compiled.AOT_EAGER, checkpoint=True), marks=FULL),
        pytest.param("fsdp/mlp-nano", dict(precision=Precision.FP8), marks=FULL),
        # What devices step with by default, and cores do not: parameters partly in shards.
        pytest.param("tensor_parallel/decoder-nano", dict(stepping=Stepping.FUSED), marks=FULL),
        ("fsdp/mlp-nano", dict(stepping=Stepping.FOREACH)),
        pytest.param("fsdp/decoder-nano", dict(precision=Precision.FP16, clip=1.0), marks=FULL),
        pytest.param("zero1/decoder-nano", dict(stepping=Stepping.FUSED), marks=FULL),
        pytest.param(
            "fsdp/decoder-nano", dict(checkpoint=True, selective=True, checkpoint_every=2), marks=FULL
        ),
        pytest.param("pipeline/decoder-nano", dict(checkpoint=True, checkpoint_every=2), marks=FULL),
        pytest.param("pipeline/decoder-nano", dict(compiled=Compiled.AOT_EAGER), marks=FULL),
        pytest.param(
            "pipeline/decoder-nano",
            dict(compiled=Compiled.AOT_EAGER, knobs={"pipeline.schedule": "interleaved"}), marks=FULL,
        ),
        pytest.param("tensor_parallel/decoder-nano", dict(attention=Attention.FLASH), marks=FULL),
        pytest.param(
            "ddp/decoder-nano", dict(compiled=Compiled.INDUCTOR), marks=FULL
        ),
    ],
)  # fmt: skip
def test_settings_take_effect_under_other_strategies(
    launch: Any, name: str, fields: dict[str, Any]
) -> None:
    world = launch(name, 2, **fields)
    assert world.cause is None and not world.failed, (world.cause, world.failed)


def test_a_compiled_case_is_judged(launch: Any) -> None:
    """The model is examined without compiled blocks, so only its own compiled functions count."""
    world = launch("ddp/decoder-nano", 2, compiled=Compiled.AOT_EAGER)
    assert world.cause is None and not world.failed, (world.cause, world.failed)


def test_a_setting_without_anything_to_act_on_is_an_error(launch: Any) -> None:
    world = launch("ddp/mlp-nano", 2, attention=Attention.MATH)
    (detail,) = {c.detail for c in world.failed}
    assert detail == "no attention ran; requested: math"


@pytest.mark.full
def test_compiling_is_timed_and_lies_before_the_window(launch: Any) -> None:
    world = launch("ddp/decoder-nano", 2, Purpose.TIMED, compiled=Compiled.AOT_EAGER)
    assert world.cause is None
    for rank in world.ranks:
        assert rank.ran.compile_s and not rank.ran.recompiled


@pytest.mark.full
def test_compiling_or_skipping_steps_inside_the_window_is_wrong(launch: Any) -> None:
    world = launch("ddp/decoder-nano", 2, Purpose.TIMED, precision=Precision.FP16)
    expected = world.described.expected
    samples = []
    for r in (0, 1):
        with np.load(world.out / f"rank{r}.npz") as arrays:
            samples.append(Samples(**{name: arrays[name] for name in arrays.files}))

    def wrong(case: CaseSpec, **ran: Any) -> str:
        ranks = [replace(r, ran=replace(r.ran, **ran)) for r in world.ranks]
        return " | ".join(figures.wrong(case, expected, ranks, samples, 2))

    assert wrong(world.case) == ""
    assert wrong(world.case, skipped=(0, 1)) == ""
    assert "1 steps of the window were skipped" in wrong(world.case, skipped=(1, 5))
    assert "compiled again inside" in wrong(world.case, recompiled=True)
    compiled = replace(world.case, compiled=Compiled.INDUCTOR)
    assert "nothing was compiled" in wrong(compiled)


def test_a_step_that_overflows_is_skipped_and_counted() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaled = torch.optim.SGD([weight], lr=1.0), Scaled(torch.device("cpu"), 4.0)
    for size in (1.0, torch.inf, 1.0):
        optimizer.zero_grad()
        scaled.scale((weight * size).sum()).backward()
        scaled.step(optimizer)
    assert scaled.skipped == [1]
    assert weight.tolist() == [-1.0, -1.0]
    again = Scaled(torch.device("cpu"), 4.0)
    again.remember(scaled.state())
    assert again.state() == scaled.state()


def test_offloaded_activations_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    x, before = torch.randn(4, 8), OnHost.moved_bytes
    model(x).sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with OnHost():
        loss = model(x).sum()
    loss.backward()
    assert OnHost.moved_bytes > before
    kept = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))


def test_products_in_8_bits_have_the_error_of_8_bits() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 48), torch.randn(5, 16, 32)
    wanted = layer(x)
    seen = float8.linear(layer, x)
    off = float((seen - wanted).detach().norm() / wanted.detach().norm())
    assert seen.shape == wanted.shape and 1e-3 < off < 0.1
    seen.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.abs().sum() > 0


def test_fp32_keeps_all_bits_of_a_product_on_a_cpu() -> None:
    assert kernels.mantissa_bits(torch.device("cpu")) == 23
