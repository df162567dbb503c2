"""Closed forms of the models, compared with torch's counters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Precision, Site
from harness.training.context import build_model, load, make_batch
from harness.training.data import hashed
from harness.training.describe import model_facts
from harness.training.models import decoder, paced

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(1,))


def loaded(name: str) -> Any:
    case = KNOWN.normalise(SITE.case(f"single/{name}"))
    return load(KNOWN.files(case)), case


@pytest.mark.parametrize(
    "name",
    [
        "decoder-nano",
        "decoder-tiny",
        "mlp-nano",
        "vggfc-nano",
        "resnet-nano",
        "resnet-small",
        "synthetic-nano",
        "gpt-nano",
        "vit-nano",
        "dit-nano",
        "dlrm-nano",
    ],
)
def test_flops_equal_those_that_torch_counts(name: str) -> None:
    """The math backend of attention is used, because torch does not count the CPU's fused one."""
    files, case = loaded(name)
    facts, _ = model_facts(files, case)
    model = build_model(files, case, 0)
    batch = make_batch(files, case, torch.arange(2), torch.device("cpu"))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        files.model.loss(model(batch.inputs), batch.targets).backward()
    assert counter.get_total_flops() == pytest.approx(2 * facts.flops_per_sample, rel=1e-6)
    assert facts.num_params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("decoder-llama-8b", 8.03e9),
        ("decoder-1b3", 1.4e9),
        ("decoder-175m", 192e6),
        ("vggfc-large", 1.24e8),
    ],
)
def test_large_sizes_have_the_stated_number_of_parameters(name: str, params: float) -> None:
    files, case = loaded(name)
    facts, _ = model_facts(files, case)
    assert facts.num_params == pytest.approx(params, rel=0.1)


def test_samples_are_a_pure_function_of_their_ids() -> None:
    for name in ("decoder-nano", "mlp-nano", "resnet-nano", "paced-small"):
        files, case = loaded(name)
        both = make_batch(files, case, torch.tensor([3, 9]), torch.device("cpu"))
        alone = make_batch(files, case, torch.tensor([9]), torch.device("cpu"))
        assert torch.equal(both.inputs[1], alone.inputs[0])
        assert torch.equal(both.targets[1], alone.targets[0])
        assert not torch.equal(both.inputs[0], both.inputs[1])


def test_bf16_model_is_bf16() -> None:
    files, case = loaded("decoder-nano")
    from dataclasses import replace

    model = build_model(files, replace(case, precision=Precision.BF16), 0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_the_language_follows_its_rule() -> None:
    """The vectorised text follows next = 5 x + 17, with a random token one time in ten."""
    size = {"seq": 300, "vocab": 50257}
    ids = torch.arange(7) * 12345
    inputs, targets = decoder.batch(ids, size)
    random = hashed(ids, 301)
    tokens = [random[:, 0] % 50257]
    for t in range(1, 301):
        follows = (5 * tokens[-1] + 17) % 50257
        tokens.append(torch.where(random[:, t] % 10 == 0, (random[:, t] >> 8) % 50257, follows))
    text = torch.stack(tokens, 1)
    assert torch.equal(inputs, text[:, :-1]) and torch.equal(targets, text[:, 1:])


@pytest.mark.parametrize(
    ("knobs", "fault"),
    [
        ({"plant": "2:0.9"}, "has no effect in mode wait"),
        ({"mode": "schedul"}, "wait or schedule"),
        ({"mode": "schedule", "plant": "2=0.9"}, "ranks:efficiency"),
    ],
)
def test_a_known_efficiency_without_effect_is_refused(knobs: dict[str, str], fault: str) -> None:
    size = {**paced.SIZES["small"], **paced.KNOBS}
    paced.build({**size, "mode": "schedule", "plant": "2:0.9"})
    with pytest.raises(SpecError, match=fault):
        paced.build({**size, **knobs})
