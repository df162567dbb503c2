"""The smaller world sizes of a scaling sweep are measured once, and judged only if the largest
fails.
"""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.judging.verdicts import of_plan
from harness.cases import BoundSource, Plan, Threshold
from harness.record import RunRecord, Status

RULE = Threshold(
    name="r", case="*", metric="efficiency", baseline="plain", source=BoundSource.REQUIREMENT,
    at_least=0.3,
)  # fmt: skip


def with_curve(run: RunRecord, bound: float, worst: float = 1.0) -> tuple[RunRecord, Plan]:
    """Return the sample with its smaller world size measured for the curve only, and its largest
    slowed by ``worst``.
    """
    plan = run.plans[0]
    contrasts = tuple(
        replace(c, curve=c.subject == "@1" and c.metric == "efficiency") for c in plan.contrasts
    )
    curved = replace(plan, contrasts=contrasts)
    launches = [
        replace(x, plan=curved.hash, consumed=int(x.consumed * (worst if x.arm == "@2" else 1.0)))
        for x in run.launches
    ]
    again = [replace(x, attempt=1, launch=f"{x.launch}-again") for x in launches if x.block >= 0]
    made = replace(
        run, plans=(curved,), launches=(*launches, *again), thresholds=(replace(RULE, at_least=bound),),
        windows={curved.hash: run.windows[plan.hash]},
    )  # fmt: skip
    return made, curved


def judged(run: RunRecord, plan: Plan) -> dict[str, str | None]:
    return {v.contrast: v.rule for v in of_plan(run, plan) if v.metric == "efficiency"}


def test_only_the_largest_world_is_judged(sample_run: RunRecord) -> None:
    run, plan = with_curve(sample_run, 0.3)
    assert judged(run, plan)["efficiency@2/plain"] == "r"
    assert judged(run, plan)["efficiency@1/plain"] is None


def test_smaller_worlds_are_judged_if_the_largest_fails(sample_run: RunRecord) -> None:
    run, plan = with_curve(sample_run, 0.6, worst=0.3)
    (failed,) = (v for v in of_plan(run, plan) if v.contrast == "efficiency@2/plain")
    assert failed.status is Status.FAIL, failed
    assert judged(run, plan)["efficiency@1/plain"] == "r"


def test_only_judged_arms_are_in_every_block(sample_run: RunRecord) -> None:
    _, plan = with_curve(sample_run, 0.3)
    to_plain = tuple(c for c in plan.contrasts if c.against == "plain" and c.metric == "efficiency")
    ladder = replace(plan, contrasts=to_plain)
    assert [arm.name for arm in ladder.judged_arms] == ["plain", "@2"]
    blocks = ladder.protocol.min_blocks
    assert ladder.num_first_launches(ladder.arms) == 2 * (len(ladder.arms) + 2 * (blocks - 1))
