"""Ray Train: the DDP that ``prepare_model`` wraps around a model in a Ray worker."""

import sys
from dataclasses import replace
from typing import Any

from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext, within
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True, compiles=False,
    packages=("ray[train]",),
)  # fmt: skip


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect DDP's bytes. With a single worker, Ray returns the plain model."""
    like = ddp.expect(case, model, batching, facts, ddp.KNOBS)
    alone = case.world_size == 1
    return replace(like, module=type(model).__name__ if alone else like.module)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Call ``prepare_model`` as the Ray worker with this rank, but without a Ray cluster."""
    hook = sys.excepthook
    from ray.train.torch import prepare_model
    from ray.train.v2._internal.execution import train_fn_utils

    sys.excepthook = hook  # Ray's hook would report errors to a cluster that does not exist
    local_rank, local_size = within(ctx.case.nodes, ctx.rank)
    worker = train_fn_utils.LocalTrainFnUtils(
        experiment_name="scaleproof",
        world_size=ctx.world_size,
        world_rank=ctx.rank,
        local_rank=local_rank,
        local_world_size=local_size,
    )
    train_fn_utils.set_train_fn_utils(worker)
    more = dict(gradient_as_bucket_view=True)
    module: Any = prepare_model(model, move_to_device=ctx.device, parallel_strategy_kwargs=more)

    def synchronise(last: bool) -> None:
        if hasattr(module, "require_backward_grad_sync"):
            module.require_backward_grad_sync = last and ctx.case.communicate

    return LocalTrainer(
        module,
        ctx,
        synchronise=synchronise,
        placements=("Replicate",),
        named=lambda: (
            (name.removeprefix("module."), parameter)
            for name, parameter in module.named_parameters()
        ),
    )
