"""FSDP1, the legacy wrapper: flat parameters sharded per block. New training takes FSDP2."""

import warnings
from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training import optimizers
from harness.training.context import Knobs, RankContext
from harness.training.parallel import traffic
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed",
    precisions=("fp32",),  # its flat shards round otherwise in bf16 and autocast
)  # fmt: skip
KNOBS = dict(sharding="full")
SHARDING = {"full": ShardingStrategy.FULL_SHARD, "grad_op": ShardingStrategy.SHARD_GRAD_OP}


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """As FSDP2, but for padding: each block is one flat parameter.

    ``full`` gathers in forward and in backward, ``grad_op`` in forward only.
    """
    n = case.world_size
    size = element_bytes(model)
    if knobs["sharding"] not in SHARDING:
        sharding = knobs["sharding"]
        raise ValueError(f"{case.strategy}.sharding is {' or '.join(SHARDING)}, not {sharding!r}")
    if not case.communicate:
        raise ValueError("FSDP1 cannot run without communication: its shards would stay apart")
    optimizers.refuse(case, "flat parameters")
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"blocks of an nn.Sequential are sharded, not a {type(model).__name__}")
    flat = [
        sum(parameter.numel() for parameter in block.parameters()) for block in model.children()
    ]
    trains = [any(w.requires_grad for w in block.parameters()) for block in model.children()]
    gathers = 2 if knobs["sharding"] == "full" else 1
    sent = traffic.Traffic()
    for number, elements in enumerate(flat):
        shard = float(-(-elements // n) * size)
        often = gathers if any(trains[: number + 1]) else 1  # no backward pass goes back further
        sent += traffic.all_gather(shard, n) * (often * batching.accumulate)
        if trains[number]:
            sent += traffic.reduce_scatter(case.backend)(shard * n, n)
    passes = gathers * batching.accumulate + (2 if case.backend in traffic.NO_SCATTER else 1)
    return traffic.expected(
        [sent] * n,
        largest=float(max(flat) * size),
        module="FullyShardedDataParallel",
        ideal_efficiency=1.0,
        memory_bytes=max(
            num_elements(model) * size,
            training_bytes(num_elements(model) / n, size, facts, batching.largest)
            + 2 * max(flat) * size,
        ),
        formula=f"{passes} (N-1)/N bytes(P)",
        global_batch=batching.global_batch,
    )


class FlatTrainer(LocalTrainer):
    """Gradients and parameters are views of flat shards: they are gathered to be compared."""

    def _summoned(self, gradients: bool) -> Iterator[tuple[str, Tensor]]:
        with FullyShardedDataParallel.summon_full_params(
            self.module, writeback=False, with_grads=gradients
        ):
            for name, parameter in self.named():
                shown = parameter.grad if gradients else parameter
                if shown is not None and (parameter.requires_grad or not gradients):
                    yield name, shown.detach().clone()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        return iter(list(self._summoned(gradients=True)))

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(list(self._summoned(gradients=False)))


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Every block wrapped, then the root; parameters keep their names."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.fsdp")

    def wrap(module: nn.Module) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(
            module,
            sharding_strategy=SHARDING[knobs["sharding"]],
            device_id=ctx.device,
            use_orig_params=True,
        )

    for name, block in list(model.named_children()):
        setattr(model, name, wrap(block))
    module = wrap(model)

    def synchronise(last: bool) -> None:
        for part in module.modules():
            if isinstance(part, FullyShardedDataParallel):
                part._sync_gradients = last  # type: ignore[assignment]  # what ``no_sync`` sets

    return FlatTrainer(
        module,
        ctx,
        named=lambda: (
            (name.replace("_fsdp_wrapped_module.", ""), parameter)
            for name, parameter in module.named_parameters()
        ),
        synchronise=synchronise,
    )
