"""Figures that contracts ask for, compared with arithmetic on the measurements of launches."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.judging.factors import figure
from harness.analysis.judging.points import mfu
from harness.analysis.judging.verdicts import verdicts
from harness.cases import Device
from harness.cases.metrics import METRICS, metric
from harness.cases.rules import load_thresholds
from harness.interface.report import screen, tables
from harness.record import LaunchRecord, Purpose, RunRecord, Status, Verdict

#: The dense bf16 peak of an H100 in FLOP/s, from NVIDIA's data sheet.
PEAK = 989.4e12
FLOPS, AGAIN, TOKENS = 6e11, 2e11, 1024


@pytest.fixture
def on_h100(sample_run: RunRecord) -> RunRecord:
    """Return the sample as if it had trained sequences in bf16 on H100s."""
    doc = sample_run
    plans = tuple(
        replace(
            plan,
            arms=tuple(
                replace(arm, case=replace(arm.case, device=Device.CUDA, precision="bf16"))
                for arm in plan.arms
            ),
        )
        for plan in doc.plans
    )
    facts = {
        arm.case.hash: replace(
            doc.described[old.case.hash],
            facts=replace(
                doc.described[old.case.hash].facts,
                flops_per_sample=FLOPS, again_flops_per_sample=AGAIN, tokens_per_sample=TOKENS,
            ),
        )
        for before, plan in zip(doc.plans, plans, strict=True)
        for old, arm in zip(before.arms, plan.arms, strict=True)
    }  # fmt: skip
    machine = replace(doc.machine, gpu="NVIDIA H100 80GB HBM3", num_gpus=2)
    pairs = list(zip(doc.plans, plans, strict=True))
    plan_of = {before.hash: plan for before, plan in pairs}
    launches = tuple(
        replace(launch, plan=plan.hash, case=plan.arm(launch.arm).case.hash)
        for launch in doc.launches
        if (plan := plan_of.get(launch.plan)) is not None
    )
    run = replace(doc, plans=plans, described=facts, machine=machine, launches=launches)
    return replace(run, verdicts=tuple(verdicts(run)))


def judged(run: RunRecord, folder: Path, metric: str, unit: str, bound: str) -> Verdict:
    """Return the verdict of a rule with this bound on the world of two ranks."""
    (file := folder / "thresholds.toml").write_text(
        f"""[[rule]]
name = "one"
source = "requirement"
case = "ddp/*"
metric = "{metric}"
unit = "{unit}"
{bound}
world = 2
"""
    )
    every = verdicts(replace(run, thresholds=load_thresholds(file)))
    (verdict,) = [v for v in every if v.metric == metric]
    return verdict


def of_two(run: RunRecord) -> LaunchRecord:
    return next(x for x in run.launches if x.purpose is Purpose.TIMED and len(x.ranks) == 2)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("throughput", 1.0),
        ("throughput_per_device", 1 / 2),
        ("tokens_per_s", TOKENS),
        ("tokens_per_s_per_device", TOKENS / 2),
        ("flops_per_s", FLOPS),
        ("flops_per_s_per_device", FLOPS / 2),
        ("mfu", FLOPS / 2 / PEAK),
        ("hfu", (FLOPS + AGAIN) / 2 / PEAK),
    ],
)
def test_rates_are_multiples_of_the_sample_rate(
    on_h100: RunRecord, name: str, scale: float
) -> None:
    launch = of_two(on_h100)
    case = on_h100.plans[0].arm("@2").case
    samples_per_s = launch.consumed / max(r.window_s for r in launch.ranks)
    assert figure(on_h100, case, launch, METRICS[name]) == pytest.approx(samples_per_s * scale)


def test_a_figure_is_none_if_an_input_is_unknown(on_h100: RunRecord, sample_run: RunRecord) -> None:
    launch = of_two(on_h100)
    case = on_h100.plans[0].arm("@2").case
    for name in ("mfu", "hfu"):
        whole = replace(on_h100, machine=replace(on_h100.machine, mig=True))
        assert figure(whole, case, launch, METRICS[name]) is None, (
            "the peak of a MIG slice is unknown"
        )
    on_cores = sample_run.plans[0].arm("@2").case
    assert figure(sample_run, on_cores, launch, METRICS["mfu"]) is None, (
        "the peak of CPU cores is unknown"
    )
    bare = on_h100.described[case.hash]
    unknown = replace(bare, facts=replace(bare.facts, again_flops_per_sample=None))
    changed = replace(on_h100, described={**on_h100.described, case.hash: unknown})
    assert figure(changed, case, launch, METRICS["hfu"]) is None
    assert figure(changed, case, launch, METRICS["mfu"]) is not None
    shared = replace(on_h100, settings=replace(on_h100.settings, shared_gpu=True))
    for name in ("mfu", "throughput_per_device"):
        assert figure(shared, case, launch, METRICS[name]) is None, (
            "ranks that share a device have no peak of one device each"
        )
    single = replace(bare, facts=replace(bare.facts, tokens_per_sample=1))
    images = replace(on_h100, described={**on_h100.described, case.hash: single})
    assert figure(images, case, launch, METRICS["tokens_per_s"]) is None


def test_quotients_of_metrics_and_the_unit_of_energy(on_h100: RunRecord) -> None:
    case = on_h100.plans[0].arm("@2").case
    launch = of_two(on_h100)
    per_step = figure(on_h100, case, launch, metric("tokens_per_s/throughput"))
    assert per_step == pytest.approx(TOKENS)
    assert (
        METRICS["energy_per_token"].unit == "J" and not METRICS["energy_per_token"].more_is_better
    )


@pytest.mark.parametrize(("share", "holds"), [(0.5, True), (2.0, False)])
def test_a_rule_can_bound_such_a_rate(
    sample_run: RunRecord, tmp_path: Path, share: float, holds: bool
) -> None:
    """In a CPU run, a bound on the rate per rank lies below or above the measured rate."""
    launch = of_two(sample_run)
    measured = launch.throughput
    assert measured is not None
    bound = f"at_least = {share * measured / 2}"
    verdict = judged(sample_run, tmp_path, "throughput_per_device", "samples/s", bound)
    assert (verdict.status is Status.PASS) == holds


@pytest.mark.parametrize(
    ("name", "unit", "says"),
    [
        ("mfu", "1", "mfu needs a device whose peak in this precision is known"),
        ("reserved_bytes", "B", "nothing on this machine reports reserved_bytes"),
        ("energy_per_sample", "J", "nothing on this machine reports energy_per_sample"),
    ],
)
def test_a_rule_on_an_unmeasured_figure_is_inconclusive_with_the_reason(
    sample_run: RunRecord, tmp_path: Path, name: str, unit: str, says: str
) -> None:
    verdict = judged(sample_run, tmp_path, name, unit, "at_most = 0.5")
    assert verdict.status is Status.INCONCLUSIVE and verdict.detail.startswith(says)


def test_the_report_of_a_gpu_run_shows_its_mfu(on_h100: RunRecord, sample_run: RunRecord) -> None:
    """The MFU is in the report of 80 columns and in the full table; a CPU run has none."""
    of_two_ranks = mfu(on_h100, on_h100.plans[0], "@2")
    assert of_two_ranks is not None

    def shown(run: RunRecord) -> tuple[str, str]:
        folder = Path("results/runs/gpu")
        return (
            "\n".join(screen.lines(run, folder, "pytest suites/", 80)),
            "\n".join(tables.summary(run, folder, "pytest suites/", 100)),
        )

    for text in shown(on_h100):
        assert re.search(rf" MFU  (.*\n)+?.*2gpu.* {of_two_ranks:.2f}  ", text), text
    assert not any("MFU" in text for text in shown(sample_run))
