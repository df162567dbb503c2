"""Scaling sweeps over sequence length, model size, batch and data readers keep the rest equal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.cases import CaseSpec, Catalogue, Device, LearningRate, Plan, Role, Site, ladders
from harness.cases.targets import normalise

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
SUITES = Path(__file__).parents[2] / "suites"


@pytest.fixture(scope="module")
def suites() -> Iterator[Any]:
    sys.path.insert(0, str(SUITES))
    import ladders

    yield ladders
    sys.path.remove(str(SUITES))


def case(name: str, **fields: Any) -> CaseSpec:
    return KNOWN.normalise(SITE.case(name, **fields))


def subjects(plan: Plan) -> list[CaseSpec]:
    return [arm.case for arm in plan.arms]


def test_a_sweep_over_lengths_keeps_the_tokens_per_rank() -> None:
    plan = ladders.lengths(case("ddp/decoder-nano"), (32, 64, 256), tokens=256)
    assert [(c.seq_len, c.micro_batch) for c in subjects(plan)] == [(32, 8), (64, 4), (256, 1)]
    assert {c.world_size for c in subjects(plan)} == {2}
    ratios = [c for c in plan.contrasts if c.metric == "flops_ratio"]
    assert [c.baseline for c in ratios] == [("32 tokens",)] * 2


def test_a_sweep_over_sizes_keeps_the_devices() -> None:
    plan = ladders.sizes(case("fsdp/decoder-nano"), ("nano", "tiny", "mini"))
    assert [c.size for c in subjects(plan)] == ["nano", "tiny", "mini"]
    assert {c.world for c in subjects(plan)} == {"2cpu"}


def test_a_sweep_over_batches_scales_the_learning_rate_to_one_loss() -> None:
    plan = ladders.batches(case("ddp/decoder-nano"), (4, 8), to_loss=0.2)
    assert [arm.name for arm in plan.arms] == ["batch 8", "batch 16"]
    assert {c.learning_rate for c in subjects(plan)} == {LearningRate.SQRT}
    assert {c.base_batch for c in subjects(plan)} == {8}
    assert plan.to_loss == 0.2


def test_data_readers_are_compared_with_prepared_batches() -> None:
    plan = ladders.readers(case("ddp/resnet-nano", data="files"), (1, 2))
    assert [arm.name for arm in plan.arms] == ["@1", "@1-data", "@2", "@2-data"]
    assert [arm.role for arm in plan.arms][1::2] == [Role.ABLATION] * 2
    assert [c.metric for c in plan.contrasts] == ["data_cost"] * 2


def test_two_jobs_differ_only_in_their_communication() -> None:
    plan = normalise(ladders.interference(case("two_jobs/paced-small").at(4)), KNOWN)
    silent, both = subjects(plan)
    # 2 is the default, so it is dropped.
    assert (silent.knobs, both.knobs) == ({"two_jobs.talking": 1}, {})
    assert {silent.world, both.world} == {"4cpu"}
    assert [c.metric for c in plan.contrasts if c.baseline] == ["throughput_ratio"]


def test_power_caps_are_compared_with_the_default_limit() -> None:
    gpus = Site(device=Device.CUDA, backend="nccl", nodes=(2,))
    usual = KNOWN.normalise(gpus.case("ddp/decoder-nano", precision="autocast"))
    plan = normalise(ladders.power_caps(usual, (500, 300)), KNOWN)
    assert [c.power_cap_w for c in subjects(plan)] == [0, 500, 300]
    assert {c.metric for c in plan.contrasts} == {"energy_per_token", "throughput_ratio", "step_s"}
    with pytest.raises(SpecError, match="power_cap_w is a setting of CUDA devices"):
        case("ddp/decoder-nano", power_cap_w=300)


def test_a_strategy_that_names_itself_as_comparison_is_measured_by_learning(
    tmp_path: Path,
) -> None:
    head = dict(worlds="any", oracle="simulated", beside="mine", initial="broadcast")
    (tmp_path / "mine.py").write_text(f'"""Mine."""\nSUPPORTS = {head!r}\n')
    entry = Catalogue([tmp_path]).get("strategies", "mine")
    assert entry.measured_by == "mine"
    assert KNOWN.get("strategies", "two_jobs").measured_by == ""


def test_checkpoints_are_synchronous_and_asynchronous_at_each_world_size() -> None:
    courses = ladders.checkpoints(case("fsdp/decoder-nano"), (2, 4))
    assert [(c.case.world_size, c.asynchronous) for c in courses] == [
        (2, False), (2, True), (4, False), (4, True),
    ]  # fmt: skip


def test_an_impossible_sweep_is_refused_with_a_reason() -> None:
    with pytest.raises(SpecError, match="do not divide 100"):
        ladders.lengths(case("ddp/decoder-nano"), (32, 64), tokens=100)
    with pytest.raises(SpecError, match="a sweep over 1 sizes"):
        ladders.sizes(case("ddp/decoder-nano"), ("nano",))
    with pytest.raises(SpecError, match="on the device already"):
        ladders.readers(case("ddp/mlp-nano"), (1, 2))


@pytest.mark.parametrize("device", [Device.CPU, Device.CUDA])
def test_the_shipped_sweeps_can_be_planned_on_cpus_and_gpus(suites: Any, device: Device) -> None:
    backend = "gloo" if device is Device.CPU else "nccl"
    site = Site(device=device, backend=backend, nodes=(8,) if device is Device.CUDA else (2,))
    for recipe in (suites.lengths, suites.sizes, suites.batches, suites.readers):
        for plan in recipe(site):
            assert len(normalise(plan, KNOWN).arms) > 1
    assert all(KNOWN.normalise(course.case) for course in suites.checkpoints(site))
    (longest,) = (c for c in subjects(suites.lengths(site)[0]) if c.micro_batch == 1)
    assert longest.seq_len == (128 if device is Device.CPU else 1_048_576)
