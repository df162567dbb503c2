"""Sweeps over quantities other than the number of ranks.

They vary the sequence length, the model size, the batch, the data readers, or the checkpoints. Each
sweep is one plan: its arms are measured in the same blocks, and ratios refer to the first arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import SpecError
from harness.cases.case import Ablation, CaseSpec, Data, LearningRate
from harness.cases.fault_scenario import Fault, FaultScenario
from harness.cases.plan import Arm, Plan, Protocol, Role
from harness.cases.recipes import LEARNING, REAL, ablated, beside

#: The suffix of the names of batch-sweep plans, after the name of their case.
CRITICAL = " critical batch"


def _several(count: int, what: str, case: CaseSpec) -> None:
    """Raise SpecError if a sweep has fewer than two points."""
    if count < 2:
        raise SpecError(
            f"a sweep over {count} {what}", where=case.id, expected="at least two points", fix=what
        )


def lengths(case: CaseSpec, seqs: Sequence[int], *, tokens: int, protocol: Protocol = REAL) -> Plan:
    """Return a plan with increasing sequence lengths on one world.

    The number of tokens per rank and step stays the same. FLOPs per second show how busy the
    devices are, and tokens per second show what a user gets. They differ because attention needs
    more FLOPs per token if the sequence is longer.

    Args:
        seqs: tokens of a sample, the shortest first; each divides ``tokens``.
        tokens: tokens of one rank and forward pass.
    """
    _several(len(seqs), "lengths", case)
    if odd := [seq for seq in seqs if tokens % seq]:
        raise SpecError(
            f"{odd[0]} tokens per sample do not divide {tokens} tokens per rank",
            where=case.id,
            expected="lengths that divide the tokens per rank",
            fix=f"tokens={max(seqs)}",
        )
    cases = {f"{seq} tokens": replace(case, seq_len=seq, micro_batch=tokens // seq) for seq in seqs}
    metrics = ("flops_ratio", "tokens_ratio", "peak_bytes", "step_s")
    return beside(f"{case.family}{case.extras} lengths", cases, metrics, protocol=protocol)


def sizes(case: CaseSpec, names: Sequence[str], *, protocol: Protocol = REAL) -> Plan:
    """Return a plan with increasing model sizes on the same devices.

    It shows which sizes fit, and how busy they keep the devices. The verdict of a size that does
    not fit is a SKIP, which states the memory that the size needs.

    Args:
        names: sizes of the model, the smallest first.
    """
    _several(len(names), "sizes", case)
    cases = {name: replace(case, size=name, micro_batch=None) for name in names}
    metrics = ("flops_ratio", "peak_bytes", "step_s")
    name = f"{case.strategy}/{case.model} sizes @{case.world}{case.extras}"
    return beside(name, cases, metrics, protocol=protocol)


def batches(
    case: CaseSpec,
    micro_batches: Sequence[int],
    *,
    to_loss: float = 0.3,
    protocol: Protocol = LEARNING,
) -> Plan:
    """Return a plan that trains with increasing batches to the same loss.

    It measures how many samples and how much time each batch needs. Up to the critical batch size,
    a larger batch needs hardly more samples (McCandlish et al., 2018). The learning rate grows with
    the square root of the batch, as is usual for AdamW.

    Args:
        micro_batches: samples of a rank, the smallest first.
        to_loss: target loss in nats above the entropy floor of the data.
    """
    _several(len(micro_batches), "batches", case)
    first = micro_batches[0] * case.world_size * case.accumulate
    cases = {
        f"batch {count * case.world_size * case.accumulate}": replace(
            case, micro_batch=count, learning_rate=LearningRate.SQRT, base_batch=first
        )
        for count in micro_batches
    }
    metrics = ("samples_to_loss", "samples_to_loss_ratio", "time_to_loss", "time_to_loss_ratio")
    plan = beside(f"{case.family}@{case.world}{CRITICAL}", cases, metrics, protocol=protocol)
    return replace(plan, to_loss=to_loss)


def interference(case: CaseSpec, *, protocol: Protocol = REAL) -> Plan:
    """Return a plan that measures how much a second job's communication slows the first job.

    Each job has half of the ranks, on the same nodes. Both jobs compute in both arms, but in one
    arm the second job does not communicate. The ratio of the arms therefore shows only the effect
    of the shared network.

    Args:
        case: a case on a multiple of four ranks. Its strategy trains several jobs and has the knob
            ``talking``, the number of jobs that communicate.
    """
    knob = f"{case.strategy}.talking"
    cases = {
        name: replace(case, knobs={**case.knobs, knob: jobs})
        for name, jobs in (("the other job is silent", 1), ("both jobs talk", 2))
    }
    metrics = ("throughput_ratio", "step_s", "sent_bytes")
    name = f"{case.model}-{case.size}@{case.world}{case.extras} interference"
    return beside(name, cases, metrics, protocol=protocol)


def power_caps(case: CaseSpec, watts: Sequence[int], *, protocol: Protocol = REAL) -> Plan:
    """Return a plan that measures time and energy per token at several power limits of the GPUs.

    If NVML does not allow the user to set limits, the verdict of each arm is a SKIP with this
    reason.

    Args:
        watts: power limit of each GPU; the first arm leaves the limit unchanged.
    """
    _several(1 + len(watts), "caps", case)
    cases = {"as it comes": case}
    cases |= {f"{cap} W": replace(case, power_cap_w=cap) for cap in watts}
    metrics = ("energy_per_token", "throughput_ratio", "step_s")
    name = f"{case.family}@{case.world}{case.extras} power caps"
    return beside(name, cases, metrics, protocol=protocol)


def readers(case: CaseSpec, worlds: Sequence[int], *, protocol: Protocol = REAL) -> Plan:
    """Return a plan that measures the cost of reading data at each world size.

    Each world is also measured with batches that are made once and stay on the device.

    Args:
        worlds: numbers of ranks; each rank reads separately.
    """
    if case.data == Data.RESIDENT:
        raise SpecError(
            "the data of this case is on the device already, so nothing is read",
            where=case.id,
            expected="data=files",
            fix="--set data=files",
        )
    arms: list[Arm] = []
    contrasts = []
    for ranks in worlds:
        rung = Arm(name=f"@{ranks}", case=case.at(ranks), role=Role.SUBJECT)
        apart, contrast = ablated(rung, Ablation.DATA)
        arms += [rung, apart]
        contrasts.append(contrast)
    name = f"{case.family}{case.extras} readers"
    return Plan(name=name, arms=tuple(arms), contrasts=tuple(contrasts), protocol=protocol)


def checkpoints(case: CaseSpec, worlds: Sequence[int]) -> list[FaultScenario]:
    """Return two fault scenarios per world size: with synchronous and with background checkpoints.

    A scenario measures the bandwidth of checkpoints, how long training waits for them, and the time
    of a resume.
    """
    return [
        FaultScenario(case=case.at(ranks), fault=Fault.KILL, asynchronous=behind)
        for ranks in worlds
        for behind in (False, True)
    ]
