"""Recipes return complete plans with arms, baselines, and ideal values."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Mode, Protocol, Role, Site
from harness.cases.recipes import control, ladder, plain, shapes, strong_worlds, versus
from harness.cases.targets import plans_of

SITE = Site(device=Device.CUDA, backend="nccl", nodes=(8, 8, 8, 8))


def test_ladder_has_a_contrast_per_world_size_and_baseline() -> None:
    plan = ladder(SITE.case("fsdp/decoder-350m"), (1, 2, 4))
    assert [a.name for a in plan.arms] == ["plain", "@1", "@2", "@4"]
    assert plan.arm("plain").case.strategy == "single"
    assert {(c.subject, c.against, c.ideal) for c in plan.contrasts} == {
        ("@1", "plain", 1.0),
        ("@2", "plain", 2.0),
        ("@2", "wrapped", 2.0),
        ("@4", "plain", 4.0),
        ("@4", "wrapped", 4.0),
    }


def test_plain_drops_what_belongs_to_the_strategy() -> None:
    knobs = {"compressed.bucket_cap_mb": 5.0, "paced.step_ms": 9.0, "topk.rho": 0.1}
    case = plain(SITE.case("compressed:topk/paced-small", knobs=knobs))
    assert (case.strategy, case.compressor, case.world_size) == ("single", None, 1)
    assert case.knobs == {"paced.step_ms": 9.0}


def test_plain_reads_as_its_subject_does() -> None:
    """Otherwise a baseline could wait for data that its subject does not wait for."""
    case = SITE.case(
        "ddp/mlp-nano", data="files", knobs={"files.workers": 3, "ddp.bucket_cap_mb": 5}
    )
    assert plain(case).knobs == {"files.workers": 3}


def test_one_node_is_the_baseline_of_several() -> None:
    case = SITE.case("fsdp/decoder-1b3", Mode.STRONG, global_batch=128)
    plan = ladder(
        case,
        (8, 16, 32),
        baselines=("one_node",),
        metrics=("speedup", "efficiency"),
        shape=SITE.shape,
    )
    assert plan.arm("@32").case.nodes == (8, 8, 8, 8)
    ideals = {(c.metric, c.subject): c.ideal for c in plan.contrasts}
    assert ideals == {
        ("speedup", "@16"): 1.0,
        ("speedup", "@32"): 1.0,
        ("efficiency", "@16"): 2.0,
        ("efficiency", "@32"): 4.0,
    }


def test_the_same_ranks_are_compared_on_one_node_and_on_several() -> None:
    plan = shapes(SITE.case("ddp/decoder-350m"), [(8,), (4, 4), (2, 2, 2, 2)])
    assert [(a.name, a.role) for a in plan.arms] == [
        ("8gpu", Role.BASELINE), ("2x4gpu", Role.SUBJECT), ("4x2gpu", Role.SUBJECT),
    ]  # fmt: skip
    assert {a.case.world_size for a in plan.arms} == {8}
    assert [(c.subject, c.baseline, c.ideal) for c in plan.contrasts] == [
        ("2x4gpu", ("8gpu",), 1.0), ("4x2gpu", ("8gpu",), 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("layouts", [[(4, 4), (8,)], [(8,), (4, 8)]])
def test_shapes_start_on_one_node_and_keep_their_ranks(layouts: list[tuple[int, ...]]) -> None:
    with pytest.raises(SpecError, match="shapes"):
        shapes(SITE.case("ddp/decoder-350m"), layouts)


def test_smallest_fit_offers_every_smaller_world_size() -> None:
    plan = ladder(SITE.case("fsdp/decoder-llama-8b"), (1, 2, 4), baselines=("smallest_fit",))
    assert {(c.subject, c.baseline, c.ideal) for c in plan.contrasts} == {
        ("@2", ("@1",), 2.0),
        ("@4", ("@1",), 4.0),
        ("@4", ("@2",), 2.0),
    }


def test_sum_of_devices_measures_each_device_alone() -> None:
    plan = ladder(SITE.case("ddp/mlp-nano"), (1, 2), baselines=("sum_of_devices",))
    (contrast,) = [c for c in plan.contrasts if c.subject == "@2"]
    assert (contrast.baseline, contrast.ideal) == (("plain@device0", "plain@device1"), 1.0)
    assert plan.arm("plain@device1").case.first_device == 1


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(SpecError, match="no baseline named 'plane'"):
        ladder(SITE.case("ddp/mlp-nano"), (1,), baselines=("plane",))


def test_versus_compares_two_cases_and_control_makes_a_control_arm() -> None:
    a, b = SITE.case("ddp/mlp-nano"), SITE.case("fsdp/mlp-nano")
    plan = versus(a, b, ("memory_saved", "wire_ratio"))
    assert [(c.subject, c.baseline) for c in plan.contrasts] == [("b", ("a",))] * 2
    assert control(a).arms[0].role is Role.CONTROL


def test_strong_worlds_divide_the_batch() -> None:
    case = SITE.case("ddp/mlp-nano", Mode.STRONG, global_batch=12)
    assert strong_worlds(case, (1, 2, 3, 4, 8)) == (1, 2, 3, 4)


def test_only_keeps_the_baselines_it_needs() -> None:
    plan = ladder(SITE.case("ddp/mlp-nano"), (1, 2, 4))
    kept = plan.only([c for c in plan.contrasts if c.name == "efficiency@4/wrapped"])
    assert [a.name for a in kept.arms] == ["@1", "@4"]
    assert kept.hash != plan.hash


@pytest.mark.parametrize("bad", [{"cut": 10}, {"min_blocks": 9}, {"cut": -1}])
def test_impossible_protocols_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a protocol needs"):
        Protocol(**{"steps": 10, "cut": 2, **bad})


def test_a_failing_import_in_a_recipe_file_is_reported_with_its_line(tmp_path: Path) -> None:
    """A mistake in a user's file is reported as the user's, not as an internal error."""
    file = tmp_path / "test_mine.py"
    file.write_text(
        "from harness import ladder, scaling\n\nfrom harness import no_such_thing\n\n\nscaling()\n"
    )
    with pytest.raises(SpecError, match="cannot be imported: ImportError") as caught:
        plans_of(str(file), SITE, Catalogue(), {}, [])
    assert f"{file}:3" in str(caught.value)
