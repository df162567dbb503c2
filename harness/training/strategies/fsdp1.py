"""FSDP1, the legacy wrapper: flat parameters sharded per block. New projects should use FSDP2."""

import warnings
from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from harness.base.errors import NotComparableError
from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training import optimizers
from harness.training.context import Knobs, RankContext
from harness.training.parallel import traffic
from harness.training.trainer import (
    LocalTrainer,
    element_bytes,
    hooked,
    lost_hook,
    num_elements,
    training_bytes,
)

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed",
    precisions=("fp32",),  # flat shards round differently in bf16 and autocast
)  # fmt: skip
KNOBS = dict(sharding="full")
SHARDING = {"full": ShardingStrategy.FULL_SHARD, "grad_op": ShardingStrategy.SHARD_GRAD_OP}


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the bytes of FSDP2, but with the padding of one flat parameter per block.

    If ``sharding`` is ``full``, parameters are gathered in forward and in backward. If it is
    ``grad_op``, they are gathered in forward only.
    """
    n = case.world_size
    size = element_bytes(model)
    if knobs["sharding"] not in SHARDING:
        sharding = knobs["sharding"]
        raise ValueError(
            f"{case.strategy}.sharding is {sharding!r}; expected {' or '.join(SHARDING)}"
        )
    if not case.communicate:
        raise ValueError(
            "FSDP1 cannot run without communication, because each rank holds only a shard"
        )
    optimizers.refuse(case, "flat parameters")
    if unused := sorted(getattr(model, "unused", ())):
        raise NotComparableError(
            f"the loss does not depend on {unused[0]}, which one device skips, but FSDP1"
            " updates it with a gradient of 0: choose fsdp, or freeze it"
        )
    if not isinstance(model, nn.Sequential):
        raise ValueError(
            f"build() of the model returned a {type(model).__name__}; FSDP1 expects an"
            " nn.Sequential of blocks"
        )
    flat = [
        sum(parameter.numel() for parameter in block.parameters()) for block in model.children()
    ]
    trains = [any(w.requires_grad for w in block.parameters()) for block in model.children()]
    gathers = 2 if knobs["sharding"] == "full" else 1
    sent = traffic.Traffic()
    for number, elements in enumerate(flat):
        shard = float(-(-elements // n) * size)
        # Backward stops at the first block that trains, so earlier blocks are gathered only once.
        often = gathers if any(trains[: number + 1]) else 1
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
    """A trainer that gathers flat shards to yield whole gradients and parameters."""

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
    """Wrap every block, then the root; parameters keep their names."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.fsdp")

    if name := hooked(dict(model.named_parameters())):
        raise lost_hook(name, ctx.case.strategy)

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
                part._sync_gradients = last  # type: ignore[assignment]  # as ``no_sync`` does

    return FlatTrainer(
        module,
        ctx,
        named=lambda: (
            (name.replace("_fsdp_wrapped_module.", ""), parameter)
            for name, parameter in module.named_parameters()
        ),
        synchronise=synchronise,
    )
