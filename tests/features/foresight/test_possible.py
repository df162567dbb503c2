"""The rules that a fabric can satisfy: faster links never make a rule harder, and no answer is
invented.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cases import BoundSource, Catalogue, Device, Mode, Plan, Site as Where, Threshold
from harness.cases.recipes import ladder
from harness.cases.targets import normalise, plans_of
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.possible import (
    Chance,
    FabricSite,
    Possibility,
    RuleLeftOut,
    possibilities,
    unsaid,
    without_plan,
)
from harness.host import devices
from harness.interface.cli.main import main
from harness.record import Described, Expected, ModelFacts

KNOWN = Catalogue()
GPUS = Where(device=Device.CUDA, backend="nccl", nodes=(8,) * 8)


def plan() -> Plan:
    case = GPUS.case("ddp/decoder-1b3", Mode.WEAK)
    return normalise(ladder(case, (1, 64), baselines=("plain",), shape=GPUS.shape), KNOWN)


def described(made: Plan, memory: int = 1) -> dict[str, Described]:
    """Return what an agent would describe: all-reduced fp32 gradients of 1.3e9 parameters."""
    facts = ModelFacts(
        num_params=1_300_000_000, flops_per_sample=6 * 1.3e9 * 2048, tokens_per_sample=2048,
        activation_bytes_per_sample=1, input_shape=(2048,), input_dtype="int64",
    )  # fmt: skip

    def told(ranks: int) -> Described:
        payload = {} if ranks == 1 else {"all_reduce": (5.2e9,) * ranks}
        expected = Expected(
            sent_bytes=(0.0,) * ranks, payload_bytes=payload, largest_message=26e6, module="",
            ideal_efficiency=1.0, memory_bytes=memory, formula="", global_batch=2 * ranks,
        )  # fmt: skip
        return Described(facts=facts, expected=expected)

    return {a.case.hash: told(a.case.world_size) for a in made.arms}


def rule(at_least: float, **more: Any) -> Threshold:
    return Threshold(
        name="asked", case="ddp/decoder-*/weak", metric="efficiency", unit="1", mode=Mode.WEAK,
        baseline="plain", source=BoundSource.REQUIREMENT, world=(64,), at_least=at_least, **more,
    )  # fmt: skip


def found(at_least: float, network: float, memory: int = 1, **more: Any) -> Possibility:
    made = plan()
    fabric = Fabric(per_node=8, intra_bytes_per_s=450e9, inter_bytes_per_s=network)
    peaks = {"float32": 67e12, "bfloat16": 989e12}
    site = FabricSite(
        machine=devices.parse("8x8xh100").machine, fabric=fabric, peaks=peaks, beliefs={}
    )
    description = described(made, memory)
    (possibility,) = possibilities(made, description, [rule(at_least, **more)], site, KNOWN)
    assert isinstance(possibility, Possibility)
    return possibility


def test_faster_links_never_lower_the_predicted_efficiency() -> None:
    """The bound is out of reach on slow links, and open or possible on fast ones."""
    seen = [found(0.9, rate) for rate in (1e8, 1e9, 1e10, 1e11)]
    middles = [row.middle for row in seen]
    assert middles == sorted(middles) and middles[-1] - middles[0] > 0.3
    assert seen[0].chance is Chance.NO and seen[-1].chance is not Chance.NO
    assert seen[0].limiter == "exchange bytes"
    assert all(row.low <= row.middle <= row.high for row in seen)


def test_the_required_link_rate_is_sufficient_and_necessary() -> None:
    slow = found(0.85, 1e9)
    assert slow.times is not None and slow.times > 1
    assert found(0.85, 1e9 * slow.times * 1.01).middle >= 0.85
    assert found(0.85, 1e9 * slow.times * 0.9).middle < 0.85


def test_no_link_rate_compensates_for_other_costs() -> None:
    beyond = found(0.9999, 1e10)
    assert beyond.chance is Chance.NO and beyond.times is None


def test_rules_that_do_not_match_or_bound_no_speed_are_left_out() -> None:
    made = plan()
    site = FabricSite(
        machine=devices.parse("8x8xh100").machine,
        fabric=Fabric(per_node=8, intra_bytes_per_s=1e9, inter_bytes_per_s=1e9), peaks={},
        beliefs={},
    )  # fmt: skip
    description = described(made)
    known_peak = replace(site, peaks={"float32": 1e13})
    (blind,) = possibilities(made, description, [rule(0.9)], site, KNOWN)
    assert isinstance(blind, RuleLeftOut) and "the compute rate of the device" in blind.why
    assert not list(
        possibilities(made, description, [rule(0.9, device=Device.CPU)], known_peak, KNOWN)
    )
    most = [replace(rule(0.9), at_least=None, at_most=1.0)]
    (silent,) = possibilities(made, description, most, known_peak, KNOWN)
    assert isinstance(silent, RuleLeftOut) and "upper bound" in silent.why


def test_a_case_that_does_not_fit_in_memory_is_not_possible() -> None:
    fits, not_ = found(0.5, 1e11), found(0.5, 1e11, 90 << 30)
    assert fits.chance is Chance.YES and fits.fits
    assert not_.chance is Chance.NO and not not_.fits


def test_a_fabric_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "thresholds", "suites"]) == 4
    assert "no hardware was given" in capsys.readouterr().err


def test_every_suite_can_be_planned_for_gpus() -> None:
    """No CPU test would otherwise run the recipes for GPUs."""
    for nodes in ((1,), (2,), (8,), (8,) * 4):
        site = Where(device=Device.CUDA, backend="nccl", nodes=nodes)
        assert len(plans_of("suites", site, KNOWN, {})) > 20


def test_skipped_steps_are_measured_only_with_loss_scaling() -> None:
    """Otherwise the suite of precisions could not pass on any machine."""
    for site in (GPUS, GPUS.cpu(2)):
        (made,) = plans_of("suites/knobs.py::precisions", site, KNOWN, {})
        asked = [c.subject for c in made.contrasts if c.metric == "skipped_steps"]
        assert asked == ["fp16"] and len(made.arms) >= 5


@pytest.mark.full
def test_the_shipped_claims_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "predict",
        "thresholds",
        "suites/test_claims.py",
        "--on",
        "8xh100",
        "--results",
        str(tmp_path),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "claim_175m_b64_speedup_8" in shown and "limited by" in shown


def test_rules_without_an_answer_are_listed_with_their_reason() -> None:
    """The rules are on another metric, an upper bound, and a case that no plan contains."""
    made = plan()
    memory = replace(rule(0.5), name="memory", metric="memory_saved")
    most = replace(rule(0.5), name="most", at_least=None, at_most=1.0)
    cores = replace(rule(0.5), name="cores", device=Device.CPU)
    contrast = made.contrasts[0]
    assert unsaid(contrast, rule(0.5)) == ""
    assert unsaid(contrast, most) == "an upper bound on speed rules nothing out"
    other = replace(contrast, metric="memory_saved")
    assert unsaid(other, memory) == "memory_saved can only be measured, not predicted"
    left = list(without_plan([rule(0.5), memory, cores], [made], "cuda", "suites"))
    assert [(rule_left.rule, rule_left.why) for rule_left in left] == [
        ("memory", "no test of suites measures it on this hardware"),
        ("cores", "the threshold applies to CPU ranks only"),
    ]
