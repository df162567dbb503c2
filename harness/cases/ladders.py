"""Ladders of other things than ranks: sequence length, size, batch, readers, checkpoints.

Each is the one primitive: arms that are measured in the same blocks, ratios to the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import SpecError
from harness.cases.case import Ablation, CaseSpec, Data, LearningRate
from harness.cases.fault_scenario import Fault, FaultScenario
from harness.cases.plan import Arm, Plan, Protocol, Role
from harness.cases.recipes import LEARNING, REAL, ablated, beside

#: What plans of batches are called, behind their case.
CRITICAL = " critical batch"


def _several(count: int, what: str, case: CaseSpec) -> None:
    if count < 2:
        raise SpecError(
            f"a ladder of {count} {what}", where=case.id, expected="two rungs or more", fix=what
        )


def lengths(case: CaseSpec, seqs: Sequence[int], *, tokens: int, protocol: Protocol = REAL) -> Plan:
    """Longer and longer sequences, as many tokens a rank in each step, at one world.

    FLOPs a second say how busy devices are kept, tokens a second what a user gets: attention takes
    more FLOPs a token as the sequence grows.

    Args:
        seqs: tokens of a sample, the shortest first; each divides ``tokens``.
        tokens: of one rank and forward pass.
    """
    _several(len(seqs), "lengths", case)
    if odd := [seq for seq in seqs if tokens % seq]:
        raise SpecError(
            f"{odd[0]} tokens of a sample do not divide {tokens} of a rank",
            where=case.id,
            expected="lengths that do",
            fix=f"tokens={max(seqs)}",
        )
    cases = {f"{seq} tokens": replace(case, seq_len=seq, micro_batch=tokens // seq) for seq in seqs}
    metrics = ("flops_ratio", "tokens_ratio", "peak_bytes", "step_s")
    return beside(f"{case.family}{case.extras} lengths", cases, metrics, protocol=protocol)


def sizes(case: CaseSpec, names: Sequence[str], *, protocol: Protocol = REAL) -> Plan:
    """Larger and larger models on the same devices: which fits, and how busy it keeps them.

    A size that needs more memory than there is becomes a SKIP with what it needs.

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
    """Larger and larger batches to the same loss: in how many samples, and in what time.

    Up to the critical batch a larger one takes hardly more samples (McCandlish et al., 2018); the
    learning rate grows with the root of the batch, as AdamW's should.

    Args:
        micro_batches: samples of a rank, the smallest first.
        to_loss: nats above the floor of the data.
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
    """Measures what a second job on the same nodes takes of a first one, by what it sends alone.

    Half of the ranks are each job's. Both compute in both arms; in one of them the second job is
    silent, so the ratio has nothing in it but the fabric.

    Args:
        case: of a strategy that trains several jobs and has the knob ``talking``, how many of
            them exchange; on a multiple of four ranks.
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
    """Holds the GPUs of a training at fewer and fewer watts: the time and the energy of a token.

    Where NVML does not let this user set limits each arm is a SKIP that says so.

    Args:
        watts: of each GPU; the first arm leaves them as they are.
    """
    _several(1 + len(watts), "caps", case)
    cases = {"as it comes": case}
    cases |= {f"{cap} W": replace(case, power_cap_w=cap) for cap in watts}
    metrics = ("energy_per_token", "throughput_ratio", "step_s")
    name = f"{case.family}@{case.world}{case.extras} power caps"
    return beside(name, cases, metrics, protocol=protocol)


def readers(case: CaseSpec, worlds: Sequence[int], *, protocol: Protocol = REAL) -> Plan:
    """Measures what reading costs a step as more ranks read: each world with its batches made once,
    too.

    Args:
        worlds: ranks, each of which reads for itself.
    """
    if case.data == Data.RESIDENT:
        raise SpecError(
            "the data of this case is on the device already: nothing is read",
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
    """Checkpoints of more and more ranks, each waited for and in the background.

    A recovery measures bandwidth and stall of its checkpoints, and what a resume takes.
    """
    return [
        FaultScenario(case=case.at(ranks), fault=Fault.KILL, asynchronous=behind)
        for ranks in worlds
        for behind in (False, True)
    ]
