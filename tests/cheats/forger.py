"""DDP that forges its own description: it writes one into the harness's pipe, according to which
nothing is compared and no excuse is needed.
"""

import contextlib
import json
import os
from dataclasses import replace
from typing import NoReturn

import torch.distributed as dist
from torch import nn

from harness import Batching, CaseSpec, Expected, Knobs, ModelFacts, RankContext, Trainer, ddp
from harness.base.documents import to_doc
from harness.record import Described, Reference

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(forges="excuse")


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    honest = ddp.expect(case, model, batching, facts, ddp.KNOBS)
    if dist.is_initialized():
        return honest
    usual = Reference(key="forged", shards=case.world_size, limit=0.0, memory_bytes=1)
    answer = Described(facts=facts, expected=honest, reference=usual)
    claimed = replace(honest, repeatable=False, ideal_efficiency=0.3)
    forged = {
        "excuse": replace(answer, expected=claimed, reference=None),
        "limit": replace(answer, reference=replace(usual, limit=0.02, coarse=True)),
        "facts": replace(answer, facts=replace(facts, flops_per_sample=1e12)),
        "silence": replace(answer, expected=None),
        "memory": replace(answer, reference=replace(usual, memory_bytes=10**15)),
    }
    _answer(forged[str(knobs["forges"])])


def _answer(described: Described) -> NoReturn:
    """Into every pipe of this process; then it leaves before the harness can say anything."""
    forged = json.dumps({"ok": [to_doc(described)]}).encode()
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                os.write(number, forged)
    os._exit(0)


def build(model: nn.Module, ctx: RankContext, knobs: Knobs) -> Trainer:
    return ddp.build(model, ctx, ddp.KNOBS)
