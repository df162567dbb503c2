"""DDP: replicated model, bucketed all-reduce of gradients overlapped with backward."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.record import Expected, ModelFacts
from harness.spec import Batching, CaseSpec
from harness.training.context import Knobs, RankContext
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(bucket_cap_mb=25.0, static_graph=False, bucket_view=True)
HOOKED = True  # what it sends can go through a compressor


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """A ring all-reduce of every gradient: 2 (N-1)/N bytes(P) sent per rank."""
    n, elements, size = case.world_size, num_elements(model), element_bytes(model)
    payload = float(elements * size)
    return Expected(
        sent_bytes=(2 * (n - 1) / n * payload,) * n,
        payload_bytes={"all_reduce": (payload,) * n},
        largest_message=min(payload, knobs["bucket_cap_mb"] * 2**20),
        module="DistributedDataParallel",
        placements=("Replicate",),
        dense_bytes=2 * (n - 1) / n * payload,
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(elements, size, facts, batching.largest),
        formula="2 (N-1)/N bytes(P)",
        global_batch=batching.global_batch,
    )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """DistributedDataParallel; accumulation all-reduces after the last micro-batch only."""
    ddp = DistributedDataParallel(
        model,
        device_ids=None if ctx.device.index is None else [ctx.device],
        bucket_cap_mb=knobs["bucket_cap_mb"],
        gradient_as_bucket_view=knobs["bucket_view"],
        static_graph=knobs["static_graph"],
    )

    def synchronise(last: bool) -> None:
        ddp.require_backward_grad_sync = last and ctx.case.communicate  # what ``no_sync`` sets

    return LocalTrainer(
        ddp,
        ctx,
        named=lambda: iter((n.removeprefix("module."), p) for n, p in ddp.named_parameters()),
        synchronise=synchronise,
        placements=("Replicate",),
    )
