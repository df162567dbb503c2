"""Compute a metric's value in a launch: its reading, scaled by facts of the case and the device."""

import math

from harness.cases import CaseSpec, Device, Metric
from harness.cases.metrics import Factor
from harness.host.devices import peaks
from harness.record import LaunchRecord, RunRecord

#: Text for each factor of a metric that names what is missing if the factor is unknown.
NEEDED = {
    Factor.TOKENS: "the tokens of a sample, which this model or script does not state",
    Factor.MODEL_FLOPS: "the FLOPs of a sample, which this model or script does not state",
    Factor.HARDWARE_FLOPS: "the FLOPs of recomputation, which could not be counted",
    Factor.DEVICES: "a device for each rank, but these ranks share one",
    Factor.PEAK: "a device whose peak in this precision is known (harness/host/devices.toml)",
}


def figure(
    run: RunRecord, case: CaseSpec, launch: LaunchRecord, metric: Metric, *, tail: bool = False
) -> float | None:
    """Return the value of a metric in a launch of this case, in SI units.

    ``tail`` selects the 95th percentile of steps instead of their mean. Return None if the reading
    or a factor is unknown.
    """
    reading = launch.value(metric, tail=tail)
    times = [factor(run, case, name) for name in metric.times]
    over = [factor(run, case, name) for name in metric.over]
    if reading is None or None in times or not all(over):
        return None
    return reading * math.prod(map(float, filter(None, times))) / math.prod(filter(None, over))


def factor(run: RunRecord, case: CaseSpec, name: Factor) -> float | None:
    """Return a fact of a case or of its device, or None if it is unknown.

    Model FLOPs count each operation of forward and backward once. Hardware FLOPs also count
    recomputation (A. Chowdhery et al., "PaLM", JMLR 24, 2023, appendix B). Only samples that are
    sequences have tokens. The peak of CPUs and of MIG parts of a GPU is unknown.
    """
    if name is Factor.DEVICES:
        return None if run.settings.shared_gpu else float(case.world_size)
    if name is Factor.PEAK:
        part = run.machine.mig  # a MIG part has the name of the whole GPU, but not its peak
        return None if part or case.device is Device.CPU else peaks(run.machine.gpu).get(case.dtype)
    described = run.described.get(case.hash)
    if described is None or described.facts is None:
        return None
    facts = described.facts
    if name is Factor.TOKENS:
        return float(facts.tokens_per_sample) if facts.tokens_per_sample > 1 else None
    if name is Factor.MODEL_FLOPS:
        return facts.flops_per_sample or None
    again = facts.again_flops_per_sample
    return None if again is None else facts.flops_per_sample + again or None
