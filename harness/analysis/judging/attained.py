"""Attainment: the efficiency of a training run, divided by the one that the fabric allows."""

from statistics import median

from harness.cases import CaseSpec, Contrast, Plan
from harness.record import Expected, LaunchRecord, Purpose, RunRecord
from harness.record.fabric import swept

#: Share of a step during which an all-reduce of gradients can overlap with compute. The backward
#: pass takes two thirds of a step. The last bucket of gradients is ready only when this pass ends.
HIDDEN = 0.6


#: Share of a step in which communication can overlap with compute if weights are sharded. In
#: this case, weights are also gathered during the forward pass.
HIDDEN_SHARDED = 0.9


#: The collective whose bus bandwidth represents the bandwidth of a world.
OPERATION = "all_reduce"


def allowed(run: RunRecord, plan: Plan, contrast: Contrast) -> float | None:
    """Return the largest efficiency that this run's fabric and baseline allow, at most 1.

    Return None if no sweep measured the fabric of this world, or if the baseline is not one device.
    """
    case = plan.arm(contrast.subject).case
    base = plan.arm(contrast.baseline[0]).case
    expected, alone = (run.described[c.hash].expected for c in (case, base))
    rate = bus_bps(run, case)
    steps = [
        launch.steps.mean_s
        for launch in run.by_plan.get(plan.hash, ())
        if _measured(launch) and launch.arm == contrast.baseline[0] and launch.steps
    ]
    if base.world_size > 1 or expected is None or alone is None or not rate or not steps:
        return None
    step_s = median(steps) * expected.global_batch / alone.global_batch / case.world_size
    exchange_s = max(expected.sent_bytes, default=0.0) / rate
    exposed_s = max(0.0, exchange_s - _hidden(expected) * step_s)
    return step_s / (step_s + exposed_s)


def _measured(launch: LaunchRecord) -> bool:
    return launch.purpose is Purpose.TIMED and launch.usable and not launch.attempt


def _hidden(expected: Expected) -> float:
    sharded = any("Shard" in placed for placed in expected.placements)
    return HIDDEN_SHARDED if sharded else HIDDEN


def bus_bps(run: RunRecord, case: CaseSpec) -> float | None:
    """Return the bus bandwidth that this run's sweeps measured for the world of a case, in B/s.

    If no sweep measured this world, return the bandwidth of the largest measured world on the same
    number of nodes. Return None if there is none.
    """
    of_nodes = [
        sweep
        for sweep in swept(run.fabric, attempt=0)
        if sweep.operation == OPERATION and len(sweep.nodes) == len(case.nodes) and sweep.bus_bps()
    ]
    same_world = [sweep for sweep in of_nodes if sweep.nodes == case.nodes]
    chosen = max(same_world or of_nodes, key=lambda sweep: sum(sweep.nodes), default=None)
    return None if chosen is None else median(chosen.bus_bps())
