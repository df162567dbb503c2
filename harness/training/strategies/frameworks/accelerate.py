"""Hugging Face accelerate: its DDP or its FSDP2 plugin, through ``Accelerator.prepare``."""

import os
from dataclasses import replace

import torch
from torch import nn

from harness.cases import Batching, CaseSpec, Device, Precision
from harness.record import ExecutedModel, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import data_parallel
from harness.training.strategies import ddp, fsdp
from harness.training.strategies.frameworks import all_sharded, as_torchrun_does
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", replicas=True,
    packages=("accelerate",), compiles=False,
)  # fmt: skip
KNOBS = dict(sharded=False)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the bytes of DDP, or of FSDP2 with one unit per block if ``sharded``."""
    if not case.communicate:
        raise ValueError("accelerate cannot run without communication")
    if not knobs["sharded"]:
        like = ddp.expect(case, model, batching, facts, ddp.KNOBS)
        unit = "CPU" if case.device is Device.CPU else "GPU"
        return replace(like, placements=(f"MULTI_{unit}" if case.world_size > 1 else "NO",))
    if case.device is Device.CPU:
        raise ValueError(
            "accelerate's FSDP2 plugin needs a GPU; without one it silently trains as plain DDP"
        )
    if case.precision is Precision.BF16:
        raise ValueError(
            "accelerate's FSDP2 plugin does not support precision=bf16, because it keeps parameters"
            " in fp32"
        )
    like = fsdp.expect(case, model, all_sharded(batching), facts, fsdp.KNOBS)
    return replace(like, placements=("FSDP Shard(dim=0)",))


class Prepared(LocalTrainer):
    """A trainer of the model and optimizer that ``Accelerator.prepare`` returned.

    ``kind`` is the distributed type that accelerate reports.
    """

    kind = ""

    def ran(self) -> ExecutedModel:
        """Return the distributed type that accelerate reports, and the parameters' placements."""
        sharded = [
            placement for placement in data_parallel.placements(self.module) if placement != "plain"
        ]
        return replace(super().ran(), placements=(" ".join([self.kind, *sharded]),))


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Prepare the model and the case's optimizer with ``Accelerator.prepare``."""
    as_torchrun_does(ctx)
    from accelerate import (
        Accelerator,
        DistributedDataParallelKwargs,
        FullyShardedDataParallelPlugin,
    )
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)  # settings of an earlier model would remain
    GradientState._reset_state()
    for name in [n for n in os.environ if n.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]
    plugin = (
        FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=list(
                {type(block).__name__ for block in model.children()}
            ),
        )
        if knobs["sharded"]
        else None
    )
    threads = torch.get_num_threads()
    accelerator = Accelerator(
        cpu=ctx.device.type == "cpu",
        fsdp_plugin=plugin,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    torch.set_num_threads(threads)  # accelerate changes the number of threads
    names = [name for name, _ in model.named_parameters()]
    module, optimizer = accelerator.prepare(model, ctx.optimizer(model.parameters()))
    sharded = accelerator.distributed_type.value == "FSDP"

    def synchronise(last: bool) -> None:
        if sharded:
            module.set_requires_gradient_sync(last)
        elif hasattr(module, "require_backward_grad_sync"):
            module.require_backward_grad_sync = last

    trainer = Prepared(
        module,
        ctx,
        optimizer=optimizer,
        synchronise=synchronise,
        whole=data_parallel.whole,
        named=lambda: zip(names, module.parameters(), strict=True),
    )
    trainer.kind = accelerator.distributed_type.value
    return trainer
