"""Published figures: each has a source, and a measured value is ranked among those of its fabric."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cases import Catalogue, metrics
from harness.cases.case import Device, Passes, Precision
from harness.cases.rules import load_thresholds
from harness.features.published import published_section
from harness.features.published.published import PublishedFigure, figures, standings
from harness.host.fabric import NAMES, LinkClass, MachineFabric
from harness.record import RunRecord

SUITES = Path(__file__).parents[3] / "suites/thresholds.toml"


@pytest.mark.parametrize("figure", figures(), ids=lambda figure: figure.name)
def test_every_figure_has_author_date_and_source(figure: PublishedFigure) -> None:
    metrics.metric(figure.metric)
    assert figure.by and figure.date and figure.link.startswith("https://")
    assert set(figure.fabric) <= set(NAMES) and figure.fabric and figure.n >= 1
    values = [value for _, value in sorted(figure.quantiles.items())]
    assert values == sorted(values) and all(value > 0 for value in values)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (0.70, "below the 10th percentile of"),
        (0.91, "between the 25th percentile and the median of"),
        (0.93, "between the median and the 75th percentile of"),
        (1.05, "at or above the 75th percentile of"),
    ],
)
def test_a_value_is_placed_among_the_quantiles(value: float, place: str) -> None:
    (figure,) = (figure for figure in figures() if figure.name == "a100-weak-8")
    assert figure.place(value) == place


def on_gpus(run: RunRecord, gpu: str, link: LinkClass) -> RunRecord:
    """Return the sample as if its two ranks had been GPUs."""
    machine = replace(run.machine, gpu=gpu, num_gpus=2, fabric=MachineFabric(link=link))
    return replace(run, machine=machine, settings=replace(run.settings, device=Device.CUDA))


@pytest.fixture
def sample_run(sample_run: RunRecord) -> RunRecord:
    """Return the sample as if its model were large enough to fill a GPU."""
    change = dict(size="1b3", device=Device.CUDA, precision=Precision.AUTOCAST)
    plans = tuple(
        replace(
            plan,
            arms=tuple(replace(a, case=replace(a.case, **change)) for a in plan.arms),  # type: ignore[arg-type]
        )
        for plan in sample_run.plans
    )
    names = {
        old.case.id: new.case.id
        for plan, renamed in zip(sample_run.plans, plans, strict=True)
        for old, new in zip(plan.arms, renamed.arms, strict=True)
    }
    verdicts = tuple(replace(v, case=names.get(v.case, v.case)) for v in sample_run.verdicts)
    return replace(sample_run, plans=plans, verdicts=verdicts)


def test_only_figures_of_the_same_fabric_and_device_are_compared(sample_run: RunRecord) -> None:
    """CPU runs are compared with no figure."""
    assert standings(sample_run) == []
    a100 = on_gpus(sample_run, "NVIDIA A100-SXM4-80GB", LinkClass.NVSWITCH)
    names = {place.figure.name for place in standings(a100)}
    assert names == {"a100-weak-2"}
    lines = " ".join(" ".join(published_section.lines(a100, 80)).split())
    assert "3 published ladders of data-parallel training" in lines
    assert "NVIDIA, DeepLearningExamples" in published_section.html(a100)
    over_pcie = on_gpus(sample_run, "NVIDIA H100 PCIe", LinkClass.PCIE_PEER)
    assert {place.figure.name for place in standings(over_pcie)} == {"pcie-weak-2"}
    other = on_gpus(sample_run, "NVIDIA H100 80GB HBM3", LinkClass.NVSWITCH)
    assert standings(other) == []
    for cousin in ("NVIDIA GA100-SXM4", "NVIDIA A100X", "NVIDIA A100-SXM4 + Tesla V100"):
        assert standings(on_gpus(sample_run, cousin, LinkClass.NVSWITCH)) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"size": "nano"}, "no published model is that small"),
        ({"strategy": "pipeline"}, "another strategy"),
        ({"mode": "strong"}, "another kind of ladder"),
        ({"precision": Precision.FP32}, "published in mixed precision"),
        ({"phase": Passes.FORWARD}, "no training"),
        ({"communicate": False}, "an ablation"),
        ({"stragglers": "1:0.5"}, "slowed on purpose"),
        ({"device": Device.CPU}, "cores beside GPUs"),
    ],
)
def test_only_cases_of_the_same_kind_are_compared(
    sample_run: RunRecord, change: dict[str, Any], why: str
) -> None:
    run = on_gpus(sample_run, "NVIDIA A100-SXM4-80GB", LinkClass.NVSWITCH)
    cases = {arm.case.id: arm.case for plan in run.plans for arm in plan.arms}
    (figure,) = (figure for figure in figures() if figure.name == "a100-weak-2")
    verdict = next(v for v in run.verdicts if v.case in cases and v.metric == "efficiency")
    case = cases[verdict.case]
    assert figure.of(case, verdict.against)
    assert not figure.of(replace(case, **change), verdict.against), why
    assert not figure.of(case, "wrapped"), "a figure must not apply to another baseline"


def test_notes_of_requirements_name_published_figures() -> None:
    known = {figure.name for figure in figures()}
    named = {
        name
        for rule in load_thresholds(SUITES, Catalogue())
        if rule.note.startswith("published: ")
        for name in re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+-?(?:\d+|busbw|bf16|nodes)", rule.note)
    }
    assert len(named) > 8 and named <= known, named - known
