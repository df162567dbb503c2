"""Named models have the published numbers of parameters and FLOPs, to the last printed digit."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.training.models import lora


def built(model: str, size: str) -> tuple[int, float, Mapping[str, Any]]:
    """Return the parameters, the FLOPs per training sample and the figures of a size."""
    module = importlib.import_module(f"harness.training.models.{model}")
    figures = {**getattr(module, "KNOBS", {}), **module.SIZES[size]}
    with torch.device("meta"):
        made = module.build(figures)
    return sum(p.numel() for p in made.parameters()), module.flops(figures), figures


@pytest.mark.parametrize(
    ("model", "size", "parameters"),
    [
        # Checkpoints on Hugging Face, whose index states the number of elements.
        ("decoder", "llama-8b", 8_030_261_248),
        ("decoder", "llama-70b", 70_553_706_496),
        ("moe", "mixtral-8x7b", 46_702_792_704),
        ("deepseek", "16b", 16_375_728_128),
        # torchvision's weights: num_params of ViT_*_Weights.
        ("vit", "b16", 86_567_656),
        ("vit", "l16", 304_326_632),
        ("vit", "h14", 632_045_800),
        # facebookresearch/DiT prints this number when training starts.
        ("dit", "xl2", 675_129_632),
    ],
)
def test_parameters(model: str, size: str, parameters: int) -> None:
    assert built(model, size)[0] == parameters


@pytest.mark.parametrize(
    ("size", "knobs", "trainable", "whole"),
    [
        # peft prints these numbers (print_trainable_parameters).
        ("llama2-7b", dict(rank=8, targets="qv"), 4_194_304, 6_742_609_920),
        ("llama-8b", dict(rank=8, targets="qv"), 3_407_872, 8_033_669_120),
        ("llama-8b", dict(rank=16, targets="all"), 41_943_040, 8_072_204_288),
    ],
)
def test_adapters(size: str, knobs: dict[str, Any], trainable: int, whole: int) -> None:
    """Hu et al. (2022): (d_in + d_out) r for each projection with an adapter."""
    figures = {**lora.KNOBS, **lora.SIZES[size], **knobs}
    with torch.device("meta"):
        made = lora.build(figures)
    assert sum(p.numel() for p in made.parameters() if p.requires_grad) == trainable
    assert sum(p.numel() for p in made.parameters()) == whole


@pytest.mark.parametrize("knobs", [{}, dict(rank=4, targets="qv")])
def test_flops_of_adapters_match_those_counted_by_torch(knobs: dict[str, Any]) -> None:
    """torch does not count attention on CPUs, which is 12 L S^2 d per sample."""
    figures = {**lora.KNOBS, **lora.SIZES["nano"], **knobs}
    made = lora.build(figures)
    inputs, targets = lora.batch(torch.arange(2), figures)
    with FlopCounterMode(display=False) as counter:
        lora.loss(made(inputs), targets).backward()
    attention = 12 * figures["layers"] * figures["seq"] ** 2 * figures["d"]
    assert lora.flops(figures) == counter.get_total_flops() / 2 + attention


def test_dlrm_matches_mlperf() -> None:
    """MLPerf training, DLRM: 187,767,399 rows of 128 in 26 tables, MLPs of 512-256-128 and
    1024-1024-512-256-1 over 128 + 27 x 26 / 2 interactions.
    """
    bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128
    top = 479 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 + 1
    parameters, _, figures = built("dlrm", "criteo")
    assert sum(figures["rows"]) == 187_767_399
    assert parameters == 187_767_399 * 128 + bottom + top


@pytest.mark.parametrize(
    ("size", "millions", "flops"),
    [("125m", 125, 2.25e20), ("1b3", 1_320, 2.38e21), ("13b", 12_850, 2.31e22),
     ("175b", 174_600, 3.14e23)],
)  # fmt: skip
def test_gpt3_matches_brown_et_al(size: str, millions: int, flops: float) -> None:
    """Brown et al. (2020), table D.1: parameters in millions, and FLOPs of 300 billion tokens.

    Their head shares the embedding, ours does not; they count 6 FLOPs per parameter and token, and
    no attention. Table D.1 rounds to three or four digits.
    """
    parameters, _, figures = built("gpt", size)
    tied = parameters - figures["vocab"] * figures["d"]
    assert tied / 1e6 == pytest.approx(millions, rel=4e-3)
    assert 6 * tied * 300e9 == pytest.approx(flops, rel=6e-3)


def test_gpt3_175b_by_hand() -> None:
    """96 layers with d = 12,288 of 12 d^2 + 13 d weights, positions, last norm and embeddings."""
    d = 12_288
    wanted = 96 * (12 * d * d + 13 * d) + 2048 * d + 2 * d + 2 * 50_257 * d
    assert built("gpt", "175b")[0] == wanted


@pytest.mark.parametrize(
    ("model", "size", "giga"),
    [("vit", "b16", 17.564), ("vit", "l16", 61.555), ("vit", "h14", 167.295),
     ("dit", "b2", 23.01), ("dit", "l2", 80.71), ("dit", "xl2", 118.64)],
)  # fmt: skip
def test_multiply_adds_of_a_forward_pass(model: str, size: str, giga: float) -> None:
    """torchvision's ``_ops`` of ViT, and Gflops of Peebles and Xie (2023), table 4: both are
    multiply-adds of one image. Training needs 6 FLOPs for each, except the gradient of the input.
    """
    _, flops, figures = built(model, size)
    inputs = 3 if model == "vit" else 4
    edge = figures.get("image") or figures["latent"]
    first = 2 * edge * edge * inputs * figures["d"] + (512 * figures["d"] if model == "dit" else 0)
    assert (flops + first) / 6e9 == pytest.approx(giga, rel=5e-4)


@pytest.mark.parametrize(
    ("model", "size", "active"),
    [("moe", "mixtral-8x7b", 12.88e9), ("deepseek", "16b", 2.83e9)],
)
def test_active_parameters(model: str, size: str, active: float) -> None:
    """Jiang et al. (2024): 13B of 47B are active; Dai et al. (2024): 2.8B of 16.4B.

    FLOPs per token are six for each of them, without the embedding, plus those of attention.
    """
    _, flops, figures = built(model, size)
    s, d, layers = figures["seq"], figures["d"], figures["layers"]
    counted = (flops / s - 12 * layers * s * d) / 6
    assert counted + figures["vocab"] * d == pytest.approx(active, rel=2e-3)
