"""Counts of a deep model, extrapolated from two shallow ones, equal direct counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.cases import CaseSpec, Catalogue, Compiled, Device, Precision, Site
from harness.record import Work
from harness.training import work as step_work
from harness.training.context import Loaded, build_model, load, make_batch
from harness.training.describe import _counted_flops
from harness.training.work import again_flops, kept, work

KNOWN = Catalogue()
HOW: tuple[dict[str, Any], ...] = (
    {"precision": Precision.AUTOCAST, "compiled": Compiled.INDUCTOR},
    {"checkpoint": True, "selective": True},
    {},
    {"precision": Precision.BF16},
    {"checkpoint": True},
    {"checkpoint": True, "checkpoint_every": 2},
    {"offload": True},
)
IN_CI = 2
MODELS = ("decoder-tiny", "moe-small")
EACH = [
    pytest.param(model, how, id=f"{model} {how}", marks=[pytest.mark.full] * (place >= IN_CI))
    for place, (how, model) in enumerate((how, model) for model in MODELS for how in HOW)
]


def case_of(name: str, **fields: Any) -> tuple[Loaded, CaseSpec]:
    site = Site(device=Device.CUDA, backend="nccl", nodes=(1,))
    case = KNOWN.normalise(site.case(f"single/{name}", **fields))
    return load(KNOWN.files(case)), case


def summed(step: Work) -> tuple[object, ...]:
    """Return the work with sorted products, to compare it independently of their order."""
    return replace(step, products=()), sorted(step.products, key=str)


@pytest.mark.parametrize(("name", "fields"), EACH)
def test_two_shallow_models_determine_the_counts_of_a_deep_one(
    name: str, fields: dict[str, Any]
) -> None:
    loaded, case = case_of(name, **fields)
    assert loaded.size(case)["layers"] > step_work.MORE
    assert step_work.kept_bytes(loaded, case) == kept(loaded, case)
    assert summed(step_work.step_work(loaded, case, 2)) == summed(work(loaded, case, 2))
    for count in (partial(again_flops, case=case), partial(_counted_flops, case=case)):
        assert step_work.flops(loaded, case, count) == count(loaded)


@pytest.mark.parametrize("fields", [how for how in HOW if how.get("checkpoint")])
def test_recomputation_is_the_cost_of_checkpoints(fields: dict[str, Any]) -> None:
    """The count agrees with torch's counter, with and without checkpoints."""
    loaded, case = case_of("decoder-nano", **fields)

    def counted(case: CaseSpec) -> int:
        batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
        inputs, targets = (
            torch.zeros(1, *like.shape[1:], dtype=like.dtype)
            for like in (batch.inputs, batch.targets)
        )
        model = build_model(loaded, case, case.seed)
        with FlopCounterMode(display=False) as counter:
            loaded.model.loss(model(inputs), targets).backward()
        return int(counter.get_total_flops())

    extra = counted(case) - counted(replace(case, checkpoint=False))
    assert again_flops(loaded, case) == extra
    assert case.selective or extra > 0


@pytest.mark.parametrize("how", HOW[:1])
def test_the_work_of_two_batches_determines_that_of_others(how: dict[str, Any]) -> None:
    loaded, case = case_of("decoder-nano", **how)
    by_samples = step_work.WorkBySamples(loaded)
    counted: list[int] = []

    def count(samples: int) -> Work:
        counted.append(samples)
        return work(loaded, case, samples)

    for samples in (8, 4, 16, 1):
        assert by_samples.of(samples, count) == work(loaded, case, samples), samples
    assert counted == [8, 4, 1], "one sample is laid out otherwise"


def test_batches_of_a_user_s_model_are_counted_one_by_one() -> None:
    """A user's model may compute something different from its third sample on."""
    loaded, case = case_of("decoder-nano")
    theirs = type(loaded.model)("theirs")
    vars(theirs).update({**vars(loaded.model), "__file__": "/home/me/theirs.py"})
    by_samples = step_work.WorkBySamples(replace(loaded, model=theirs))
    counted: list[int] = []
    step = work(loaded, case, 2)

    def count(samples: int) -> Work:
        counted.append(samples)
        return replace(step, samples=samples)

    for samples in (8, 4, 16):
        by_samples.of(samples, count)
    assert counted == [8, 4, 16]


def test_blocks_of_a_user_s_file_are_counted_one_by_one() -> None:
    """A user's third layer may compute more than the first two."""
    loaded, case = case_of("decoder-base")
    asked: list[int | None] = []

    def count(of: Loaded) -> float:
        asked.append(of.layers)
        return 1.0

    step_work.flops(loaded, case, count)
    assert asked == [step_work.LESS, step_work.MORE]
    asked.clear()
    theirs = type(loaded.model)("theirs")
    vars(theirs).update({**vars(loaded.model), "__file__": "/home/me/theirs.py"})
    step_work.flops(replace(loaded, model=theirs), case, count)
    assert asked == [None]
