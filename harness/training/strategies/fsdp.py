"""FSDP2: parameters, gradients and optimizer state sharded per block with fully_shard."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from harness.record import Expected, ModelFacts
from harness.spec import Batching, CaseSpec
from harness.training.context import Knobs, RankContext
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="same_seed")
KNOBS = dict(reshard=True)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """All-gather in forward (and backward if resharded), reduce-scatter of gradients.

    Each parameter is padded to N equal parts of dim 0. Every block is a group of its own; the
    last one to run forward is gathered again in backward like the others. gloo has no
    reduce-scatter: it sends an all-reduce's bytes, 2 (N-1)/N, where NCCL sends (N-1)/N.
    """
    n, size = case.world_size, element_bytes(model)
    shard = float(sum(-(-p.shape[0] // n) * p[0].numel() * size for p in model.parameters()))
    blocks = [sum(p.numel() for p in b.parameters()) * size for b in model.children()]
    gathers = batching.accumulate * (2 if knobs["reshard"] else 1)
    scatter = 2.0 if case.backend == "gloo" else 1.0
    padded = shard * n
    sent = (n - 1) / n * padded * (gathers + scatter)
    return Expected(
        sent_bytes=(sent,) * n,
        payload_bytes={
            "all_gather": (shard * gathers,) * n,
            "all_reduce" if case.backend == "gloo" else "reduce_scatter": (padded,) * n,
        },
        largest_message=max(blocks),
        module=f"FSDP{type(model).__name__}",
        placements=("Shard(dim=0)",),
        ideal_efficiency=1.0,
        # Every rank builds the whole model before it is sharded.
        memory_bytes=max(
            num_elements(model) * size,
            training_bytes(num_elements(model) / n, size, facts, batching.largest)
            + 2 * max(blocks),
        ),
        formula=f"{gathers + scatter:g} (N-1)/N bytes(P)",
        global_batch=batching.global_batch,
    )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """fully_shard on every block, then on the root, which holds no parameter of its own."""
    # torch's own choice is the device that it was compiled for, wherever the model is.
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    for block in (*model.children(), model):
        fully_shard(block, mesh=mesh, reshard_after_forward=knobs["reshard"])
    assert isinstance(model, FSDPModule)

    def whole(tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    return LocalTrainer(
        model,
        ctx,
        synchronise=model.set_requires_gradient_sync,
        whole=whole,
        placements=tuple(sorted(set(_placements(model)))),
    )


def _placements(model: nn.Module) -> Iterator[str]:
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            yield from (repr(p) for p in parameter.placements)
        else:
            yield "plain"
