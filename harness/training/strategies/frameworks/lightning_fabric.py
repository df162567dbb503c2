"""Lightning Fabric: its DDP strategy, or its ModelParallelStrategy that applies FSDP2."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from harness.cases import Batching, CaseSpec
from harness.record import ExecutedModel, Expected, ModelFacts
from harness.training.context import Knobs, RankContext, within
from harness.training.parallel import data_parallel
from harness.training.strategies import ddp, fsdp
from harness.training.strategies.frameworks import all_sharded
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", replicas=True,
    packages=("lightning",), compiles=False,
)  # fmt: skip
KNOBS = dict(sharded=False)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the bytes of DDP, or of FSDP2 over all ranks if ``sharded``.

    Each block is one FSDP2 unit.
    """
    if not case.communicate:
        raise ValueError("Fabric cannot run without communication")
    if not knobs["sharded"]:
        like = ddp.expect(case, model, batching, facts, ddp.KNOBS)
        return replace(like, placements=("plain",))
    like = fsdp.expect(case, model, all_sharded(batching), facts, fsdp.KNOBS)
    return replace(like, placements=(f"Shard(dim=0) of {case.world_size}",))


class FabricTrainer(LocalTrainer):
    """A trainer that calls Fabric's backward, and reports the module inside Fabric's wrapper."""

    fabric: Any
    inner: nn.Module

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss)

    def ran(self) -> ExecutedModel:
        """Return the class of the inner module, and the parameters' placements and mesh sizes.

        A placement alone would not show that its mesh has only one rank.
        """
        placed = {
            f"{parameter.placements[0]!r} of {parameter.device_mesh.size()}"
            if isinstance(parameter, DTensor)
            else "plain"
            for parameter in self.inner.parameters()
        }
        return replace(
            super().ran(), module=type(self.inner).__name__, placements=tuple(sorted(placed))
        )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Set up the model and the optimizer with Fabric, in the existing process group."""
    threads = torch.get_num_threads()
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

    def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for block in (*module.children(), module):
            fully_shard(block, mesh=mesh["data_parallel"])
        return module

    strategy = DDPStrategy(gradient_as_bucket_view=True)
    if knobs["sharded"]:  # by default the mesh has one rank only
        sizes = dict(data_parallel_size=ctx.world_size, tensor_parallel_size=1)
        strategy = ModelParallelStrategy(shard, **sizes)
    _, local_size = within(ctx.case.nodes, ctx.rank)
    fabric = Fabric(
        accelerator="cpu" if ctx.device.type == "cpu" else "gpu",
        devices=local_size,
        num_nodes=len(ctx.case.nodes),
        strategy=strategy,
        plugins=[_environment(ctx)],
    )
    fabric.launch()
    module = fabric.setup_module(model)
    torch.set_num_threads(threads)  # Fabric sets the number of threads to one
    inner = module._forward_module
    optimizer = fabric.setup_optimizers(ctx.optimizer(module.parameters()))

    def synchronise(last: bool) -> None:
        if knobs["sharded"]:
            inner.set_requires_gradient_sync(last)
        elif hasattr(inner, "require_backward_grad_sync"):
            inner.require_backward_grad_sync = last

    trainer = FabricTrainer(
        module,
        ctx,
        optimizer=optimizer,
        synchronise=synchronise,
        whole=data_parallel.whole,
        named=lambda: (
            (name.removeprefix("module."), parameter)
            for name, parameter in inner.named_parameters()
        ),
    )
    trainer.fabric, trainer.inner = fabric, inner
    return trainer


def _environment(ctx: RankContext) -> Any:
    """Return a Fabric environment for ranks that already run and have a process group."""
    from lightning.fabric.plugins.environments import ClusterEnvironment

    local_rank, _ = within(ctx.case.nodes, ctx.rank)
    node = next(i for i in range(len(ctx.case.nodes)) if sum(ctx.case.nodes[: i + 1]) > ctx.rank)

    class Started(ClusterEnvironment):  # type: ignore[misc]
        creates_processes_externally = True
        main_address, main_port = "127.0.0.1", 1  # unused, because the process group exists

        @staticmethod
        def detect() -> bool:
            return True

        def world_size(self) -> int:
            return ctx.world_size

        def global_rank(self) -> int:
            return ctx.rank

        def local_rank(self) -> int:
            return local_rank

        def node_rank(self) -> int:
            return node

        def set_world_size(self, size: int) -> None:
            """Raise ValueError if Fabric computes a wrong world size from devices and nodes."""
            if size != ctx.world_size:
                raise ValueError(f"Fabric counts {size} ranks; expected {ctx.world_size}")

        def set_global_rank(self, rank: int) -> None:
            """Raise ValueError if Fabric computes a wrong rank from node and local rank."""
            if rank != ctx.rank:
                raise ValueError(f"Fabric computes rank {rank}; expected {ctx.rank}")

    return Started()
