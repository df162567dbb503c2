"""The statements of a suite about its plan are checked: an arm that contradicts its name does not
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.judging.blockers import misnamed
from harness.cases import (
    Ablation,
    Arm,
    CaseSpec,
    Catalogue,
    Contrast,
    Device,
    Mode,
    Plan,
    Precision,
    Role,
    Site,
    recipes,
)
from harness.cases.recipes import ladder
from harness.cases.targets import plans_of

KNOWN = Catalogue()
CPU = Site(device=Device.CPU, backend="gloo", nodes=(4,))
CASE = KNOWN.normalise(CPU.case("ddp/decoder-nano"))
ROOT = Path(__file__).parents[3]


def made(**settings: object) -> Plan:
    return ladder(CASE, (1, 2, 4), **settings)  # type: ignore[arg-type]


def with_arm(plan: Plan, name: str, **fields: object) -> Plan:
    """Return the plan with fields of one arm, or of the arm's case, changed."""
    of_arm = {k: v for k, v in fields.items() if k == "role"}
    of_case = {k: v for k, v in fields.items() if k != "role"}
    arms = [
        replace(a, case=replace(a.case, **of_case), **of_arm) if a.name == name else a
        for a in plan.arms
    ]
    return replace(plan, arms=tuple(arms))


def with_contrast(plan: Plan, change: Callable[[Contrast], Contrast]) -> Plan:
    return replace(plan, contrasts=tuple(change(c) for c in plan.contrasts))


def told(plan: Plan) -> set[str]:
    """Return the complaints about the plan's contrasts, without contrasts of ablations, which get
    no verdict.
    """
    ablated = {a.name for a in plan.arms if a.role is Role.ABLATION}
    judged = [c for c in plan.contrasts if c.against == "rung" or c.subject not in ablated]
    return {misnamed(plan, contrast) for contrast in judged}


@pytest.mark.parametrize(
    "site",
    [
        CPU,
        CPU.cpu(1),
        Site(device=Device.CUDA, backend="nccl", nodes=(8,)),
        Site(device=Device.CUDA, backend="nccl", nodes=(8, 8)),
    ],
)
def test_every_shipped_plan_is_consistent_with_its_names(site: Site) -> None:
    for plan in plans_of(str(ROOT / "suites"), site, KNOWN, {}):
        assert told(plan) <= {""}, plan.name


@pytest.mark.parametrize("mode", ["weak", "strong"])
@pytest.mark.parametrize(
    "name",
    ["ddp/decoder-nano", "fsdp/decoder-nano", "pipeline/decoder-nano", "compressed:topk/mlp-nano"],
)
def test_scaling_sweeps_with_all_baselines_are_consistent(name: str, mode: str) -> None:
    batch = {"global_batch": 16} if mode == "strong" else {}
    plan = recipes.pinned(
        ladder(
            KNOWN.normalise(CPU.case(name, Mode(mode), **batch)),
            (1, 2, 4),
            baselines=("plain", "wrapped", "one_node", "smallest_fit", "sum_of_devices"),
            metrics=("efficiency", "speedup", "step_time_ratio", "peak_bytes"),
            ablations=(Ablation.COMMUNICATION,),
        )
    )
    assert told(plan) == {""}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (dict(size="tiny"), "size"),
        (dict(micro_batch=1), "micro_batch"),
        (dict(stragglers=(0.5,)), "stragglers"),
        (dict(precision=Precision.BF16), "precision"),
        (dict(seq_len=512), "seq_len"),
        (dict(checkpoint=True), "checkpoint"),
        (dict(data="loaded"), "data"),
        (dict(knobs={"decoder.slow": 1}), "knobs"),
        (dict(optimizer="sgd"), "optimizer"),
        (dict(accumulate=4), "accumulate"),
        (dict(strategy="ddp"), "strategy"),
        (dict(setup="slow"), "setup"),
    ],
)
def test_a_plain_baseline_is_the_same_training(fields: dict[str, object], word: str) -> None:
    plan = with_arm(made(baselines=("plain",)), "plain", **fields)
    for why in told(plan):
        assert why.startswith("plain is not the plain of ddp/decoder-nano") and word in why


def test_ideals_must_follow_from_the_numbers_of_ranks() -> None:
    plan = with_contrast(made(), lambda c: replace(c, ideal=c.ideal * 0.8))
    assert all("its ideal ratio is" in why for why in told(plan))


def test_an_arm_cannot_be_its_own_baseline() -> None:
    plan = with_contrast(made(), lambda c: replace(c, baseline=(c.subject,), ideal=1.0))
    assert "the subject is its own baseline" in told(plan)


@pytest.mark.parametrize("role", [Role.ABLATION, Role.CONTROL])
def test_what_is_wrong_on_purpose_passes_nothing(role: Role) -> None:
    for name, word in (
        ("@4", "incorrectly on purpose|is not checked"),
        ("plain", "incorrectly on purpose"),
    ):
        plan = with_arm(made(baselines=("plain",)), name, role=role)
        whys = {misnamed(plan, c) for c in plan.contrasts if name in (c.subject, *c.baseline)}
        assert whys and all(any(w in why for w in word.split("|")) for why in whys)


def test_a_subject_without_communication_does_not_pass() -> None:
    assert "its ranks do not communicate" in told(with_arm(made(), "@4", communicate=False))


def test_a_baseline_may_count_each_device_only_once() -> None:
    plan = made(baselines=("sum_of_devices",))
    plan = with_contrast(
        plan,
        lambda c: replace(c, baseline=c.baseline[:1] * len(c.baseline)),
    )
    assert "the baseline counts a device twice" in told(plan)


def test_a_users_plan_may_compare_any_cases_with_a_correct_ideal() -> None:
    """The name "other" allows any baseline case, but the ideal must follow from the ranks."""
    other: CaseSpec = KNOWN.normalise(CPU.case("ddp/decoder-tiny")).at(2)
    arms = (
        Arm(name="a", case=other, role=Role.BASELINE),
        Arm(name="b", case=CASE.at(4), role=Role.SUBJECT),
    )
    fair = Contrast(
        name="efficiency@b", metric="efficiency", subject="b", baseline=("a",), against="other",
        ideal=2.0,
    )  # fmt: skip
    plan = replace(made(), arms=arms, contrasts=(fair, replace(fair, ideal=1.0)))
    assert [misnamed(plan, c) for c in plan.contrasts] == [
        "",
        "its ideal ratio is 1, but the numbers of ranks imply 2",
    ]
