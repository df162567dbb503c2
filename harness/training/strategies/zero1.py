"""ZeRO-1: DDP with divided optimizer states; each rank broadcasts the parameters it updates."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training import optimizers
from harness.training.context import Knobs, RankContext
from harness.training.parallel import traffic
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, trained_bytes

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="shard_ordered",
    initial="broadcast",
    replicas=True,
    buffers="broadcast",
    uneven=True,
)
KNOBS = dict(bucket_cap_mb=25.0)
#: Bytes of ZeroRedundancyOptimizer's dummy bucket, which a rank without parameters broadcasts.
NOTHING = 4


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect DDP's all-reduce, and a broadcast from each rank of the weights that it updates."""
    n = case.world_size
    size = element_bytes(model)
    if not case.communicate:
        raise ValueError(
            "zero1 cannot run without communication, because each rank steps only a part of the"
            " parameters"
        )
    as_ddp = ddp.expect(case, model, batching, facts, knobs)
    shares = shared_out(list(model.parameters()), n)
    parts = [size * elements or NOTHING for elements in shares]
    dense = traffic.all_reduce(float(trained_bytes(model)), n)
    sent = [
        sum(
            (
                traffic.broadcast(part, n, (rank - root) % n, case.backend)
                for root, part in enumerate(parts)
            ),
            dense,
        )
        for rank in range(n)
    ]
    states = 2 * num_elements(model) * size
    return replace(
        as_ddp,
        **traffic.counted(sent),
        memory_bytes=as_ddp.memory_bytes - states + states // n,
        formula="2 (N-1)/N bytes(P) + broadcasts of bytes(P)",
    )


def shared_out(parameters: Sequence[nn.Parameter], ranks: int) -> list[int]:
    """Return how many elements each rank updates.

    Parameters are assigned in the order of their size, the largest first. Each goes to the rank
    with the fewest elements so far. Frozen parameters are assigned, too, but the result does not
    count them.
    """
    shares = [0] * ranks
    trained = [0] * ranks
    for weights in sorted(parameters, key=nn.Parameter.numel, reverse=True):
        rank = shares.index(min(shares))
        shares[rank] += weights.numel()
        trained[rank] += weights.numel() * weights.requires_grad
    return trained


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Build DDP with a ZeroRedundancyOptimizer around the case's optimizer."""
    trainer = ddp.build(model, ctx, knobs)
    kind, settings = ctx.update
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=kind, parameters_as_bucket_view=True, **settings
    )
    assert isinstance(optimizer, torch.optim.Optimizer)
    trainer.optimizer = optimizers.prepared(optimizer, ctx.case)
    trainer.resumable = False  # a checkpoint would have to gather the ranks' states
    return trainer
