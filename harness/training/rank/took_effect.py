"""Whether what a case asks for of its kernels and its memory is what ran, in one step of it.

A setting may silently do nothing: a kernel falls back, compilation is switched off by a variable, a
strategy unwraps what was wrapped. So nothing is read back that was set; a step is watched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from harness.cases import Attention, CaseSpec, Compiled, Precision, Stepping
from harness.host import nvml
from harness.record import Check
from harness.training.accelerator import Accelerator
from harness.training.context import RankContext, Trainer
from harness.training.data import Batch
from harness.training.tuning import kernels
from harness.training.tuning.recompute import OnHost
from harness.training.tuning.tuned import Tuned


def asked(case: CaseSpec) -> bool:
    """Whether a case asks for anything that is seen in a step."""
    return bool(
        case.checkpoint
        or case.offload
        or case.attention is not Attention.ANY
        or case.compiled is not Compiled.NO
        or case.stepping is not Stepping.USUAL
        or case.precision is Precision.FP8
    )


def checks(model: Any, trainer: Trainer, batch: Batch, ctx: RankContext) -> Iterator[Check]:
    """One more step, watched: every setting of the case against what ran on all ranks.

    ``model`` is the plain one, as it was made for this trainer.
    """
    tuned: Tuned = model.tuned
    case = ctx.case
    accelerator = Accelerator(ctx.device)
    for block in tuned.counts:
        block.first = block.again = 0
    moved = OnHost.moved_bytes
    ran = kernels.operators(accelerator, lambda: trainer.step(batch))
    total: Counter[str] = sum(ctx.gather(ran), Counter())
    if case.attention is not Attention.ANY:
        attention = kernels.attention_of(total)
        yield _check(
            "attention", attention == case.attention, f"{attention or 'no attention'} ran", case
        )
    if case.compiled is not Compiled.NO:
        regions = kernels.regions_of(total)
        wanted = max(ctx.gather(tuned.num_compiled))
        message = f"{regions} compiled regions ran, of {wanted} blocks"
        yield _check("compiled", regions >= wanted > 0, message, case)
    if case.stepping is not Stepping.USUAL:
        stepping = kernels.stepping_of(total)
        yield _check("stepping", stepping is case.stepping, f"{stepping} ran", case)
    if case.checkpoint:
        counts_before = [(c.first, c.again) for c in tuned.counts]
        counts: list[tuple[int, int]] = [
            pair for rank in ctx.gather(counts_before) for pair in rank
        ]
        kept_out, repeated = sum(kept for kept, _ in counts), sum(again for _, again in counts)
        message = f"{repeated} of {kept_out} blocks were computed again"
        done = kept_out > 0 and all(again >= kept for kept, again in counts)
        yield _check("checkpoint", done, message, case)
    if case.offload:
        to_host = sum(ctx.gather(OnHost.moved_bytes - moved))
        yield _check("offload", to_host > 0, f"{to_host} bytes went to the host", case)
    if case.precision is Precision.FP8:
        count = sum(n for name, n in total.items() if name.startswith("_scaled_mm"))
        message = f"{count} products in 8 bits, of {tuned.num_narrow} layers"
        yield _check("precision", count >= 3 * tuned.num_narrow > 0, message, case)


def switches(case: CaseSpec, device: torch.device) -> Iterator[Check]:
    """Checks the settings that only a device has: no step has to be watched for them."""
    if device.type == "cpu":
        return
    bits = kernels.mantissa_bits(device)
    message = f"products of fp32 keep {bits} bits of 23"
    yield _check("tf32", (bits < 23) == case.tf32, message, case)
    if case.priority_stream:
        options: Any = torch.distributed.distributed_c10d._get_default_group()._get_backend(device)
        yield _check(
            "priority_stream", bool(options.options.is_high_priority_stream), "of NCCL", case
        )
    if case.power_cap_w:
        held_w = nvml.power_limits()[device.index or 0].now_w
        yield _check("power_cap_w", held_w == case.power_cap_w, f"held at {held_w} W", case)


def _check(name: str, ok: bool, seen: str, case: CaseSpec) -> Check:
    asked_for = getattr(case, name)
    return Check(name=f"took_effect.{name}", ok=ok, detail=f"{seen}; asked for {asked_for}")
