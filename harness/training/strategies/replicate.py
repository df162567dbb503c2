"""FSDP2's ``replicate``: a replicated model whose gradients are all-reduced block by block."""

from dataclasses import replace

from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext, parts
from harness.training.parallel import data_parallel, traffic
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer, element_bytes, trained_bytes

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", replicas=True, uneven=True
)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect DDP's bytes, in one message for each block."""
    like = ddp.expect(case, model, batching, facts, knobs)
    unused = sum(model.get_parameter(name).nbytes for name in getattr(model, "unused", ()))
    sent = traffic.all_reduce(float(trained_bytes(model) - unused), case.world_size)
    largest = max(
        sum(parameter.numel() for parameter in block.parameters()) for block in parts(model)
    )
    return replace(
        like,
        **traffic.counted([sent] * case.world_size),
        largest_message=float(largest * element_bytes(model)),
        module=f"Replicate{type(model).__name__}",
        placements=("Replicate()",),
    )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    return data_parallel.replicated(model, ctx).trainer(ctx)
