"""Whether the arms of a contrast are what its names say: a suite may plan what it likes.

What differs is measured and told, and passes nothing: a verdict against ``plain`` is read as one
against the very same training without parallelism.
"""

from collections.abc import Iterator

from harness.base.documents import fields_of
from harness.cases import Arm, CaseSpec, Contrast, Plan, Role, metrics, recipes


def misnamed(plan: Plan, contrast: Contrast) -> str:
    """The first way in which a contrast is not what it is called; empty if it is."""
    return next(_differences(plan, contrast), "")


def _differences(plan: Plan, contrast: Contrast) -> Iterator[str]:
    subject = plan.arm(contrast.subject)
    baseline = [plan.arm(name) for name in contrast.baseline]
    if subject.name in contrast.baseline:
        yield "it is its own baseline"
    yield from _wrong_on_purpose(contrast, subject, baseline)
    if not baseline:
        return
    for arm, case in zip(baseline, _promised(contrast, subject.case, baseline), strict=True):
        if case is not None and arm.case.hash != case.hash:
            fields = ", ".join(_unlike(arm.case, case)) or "another setting"
            yield f"{arm.name} is not the {contrast.against} of {subject.case.id}: {fields}"
    if contrast.against == "sum_of_devices" and len({a.case.hash for a in baseline}) < len(
        baseline
    ):
        yield "a device is counted twice"
    ideal = _ideal(contrast, subject, baseline)
    if abs(contrast.ideal / ideal - 1) > 1e-9:
        yield f"its ideal is {contrast.ideal:g}, by its ranks {ideal:g}"


def _wrong_on_purpose(contrast: Contrast, subject: Arm, baseline: list[Arm]) -> Iterator[str]:
    """Arms that nobody checks stand for nothing but themselves."""
    if any(arm.role in (Role.ABLATION, Role.CONTROL) for arm in baseline):
        yield "its baseline is wrong on purpose"
    if subject.role is Role.CONTROL and contrast.metric != "caught":
        yield "it is a control: wrong on purpose"
    cost = contrast.against == "rung" and contrast.metric.endswith("_cost")
    if subject.role is Role.ABLATION and not cost:
        yield "it is an ablation: nobody checks what it trains"
    if subject.role is not Role.ABLATION and not subject.case.communicate:
        yield "its ranks do not communicate"


def _promised(contrast: Contrast, subject: CaseSpec, baseline: list[Arm]) -> list[CaseSpec | None]:
    """The case that each arm of the baseline has to be; None where it may be any."""
    kind = contrast.against
    if kind == "plain" and not subject.script:
        return [recipes.plain(subject)] * len(baseline)
    if kind == "sum_of_devices":
        return [recipes.device(subject, arm.case.first_device) for arm in baseline]
    if kind == "wrapped":
        return [subject.at(1)] * len(baseline)
    if kind == "smallest_fit" or (kind == "one_node" and contrast.metric != "throughput_ratio"):
        return [subject.at(arm.case.world_size, arm.case.nodes) for arm in baseline]
    if kind == "one_node":  # as many ranks on it
        return [subject.at(subject.world_size)] * len(baseline)
    return [None] * len(baseline)


def _ideal(contrast: Contrast, subject: Arm, baseline: list[Arm]) -> float:
    """The ratio that perfect scaling gives."""
    if not metrics.metric(contrast.metric).per_rank or contrast.against == "sum_of_devices":
        return 1.0
    return subject.case.world_size / sum(arm.case.world_size for arm in baseline)


def _unlike(case: CaseSpec, promised: CaseSpec) -> Iterator[str]:
    """The fields in which two cases differ."""
    fields = fields_of(promised)
    yield from (name for name, value in fields_of(case).items() if value != fields[name])
