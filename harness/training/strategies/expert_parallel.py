"""Expert parallel: experts are divided among the ranks, all other weights are replicated.

All-to-all exchanges send tokens to their experts and back.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Size, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.cases import Batching, CaseSpec, Dim
from harness.record import Category, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.observe.spans import span
from harness.training.parallel import data_parallel, experts, groups, traffic
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import LocalTrainer, element_bytes, training_bytes

SUPPORTS = dict(
    recovers=False,
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("ep", "dp", "fsdp"),
    compiles=False, replicas=True, needs=("EXPERTS",), precisions=("fp32", "bf16"),
    products=("dp:2,ep:2", "fsdp:2,ep:2"),
)  # fmt: skip

#: Mesh dimensions along which experts are replicated.
REPLICAS = (Dim.DP, Dim.FSDP)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect all-to-alls of the experts' inputs and outputs in forward and in backward.

    Other parameters are averaged along the mesh, as in any data parallel training. The rank of an
    expert computes its whole gradient, which is then averaged with the replicas of the expert.
    """
    mesh = batching.mesh
    size = element_bytes(model)
    world = case.world_size
    n = mesh.size(Dim.EP)
    if not case.communicate:
        raise ValueError(
            "expert_parallel cannot run without communication, because tokens are sent to experts"
            " on other ranks"
        )
    if case.checkpoint:
        raise ValueError(
            "checkpoint=True is not supported, because recomputed blocks would communicate again"
        )
    layers = experts.of(model)
    owned = {
        f"{name}.{p}": q for name, module in layers.items() for p, q in module.named_parameters()
    }
    numbers = {q.shape[0] for q in owned.values()}
    if any(number % n for number in numbers):
        raise ValueError(f"{max(numbers)} experts do not divide evenly over ep:{n}")
    blocks: dict[str, list[Size]] = {}
    for name, parameter in model.named_parameters():
        if name not in owned:
            blocks.setdefault(name.partition(".")[0], []).append(parameter.shape)
    dense = sum(shape.numel() for shapes in blocks.values() for shape in shapes) * size
    local = sum(p.numel() for p in owned.values()) // n * size
    sent = Traffic()
    for rooms in _rooms(model, layers, data_parallel.inputs(facts, batching.largest)):
        sent += traffic.all_to_all(rooms, n) * (4 * batching.accumulate)
    gathers = 2 * batching.accumulate
    sent += data_parallel.bytes_by_mesh(case, mesh, list(blocks.values()), size, gathers)
    for dim in REPLICAS:
        sent += traffic.all_reduce(float(local), mesh.size(dim))
    cut = mesh.size(Dim.FSDP)
    held = (dense / cut + local) / size
    return traffic.expected(
        [sent] * world,
        module=data_parallel.module_of(mesh, model) if cut > 1 else "DistributedDataParallel",
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(held, size, facts, batching.largest),
        formula="4 (N-1)/N bytes(expert inputs) per layer + 2 (N-1)/N bytes(dense)",
        global_batch=batching.global_batch,
    )


def _rooms(model: nn.Module, layers: dict[str, nn.Module], inputs: Tensor) -> list[float]:
    """Return the bytes that one rank sends to the experts of each layer.

    A forward pass on the meta device yields them.
    """
    seen: list[float] = []
    handles = [
        module.register_forward_hook(lambda _, given, __: seen.append(float(given[0].nbytes)))
        for module in layers.values()
    ]
    model(inputs)
    for handle in handles:
        handle.remove()
    return seen


class ExpertTrainer(LocalTrainer):
    """A trainer that gathers experts for the correctness check.

    ``owned`` holds the names of the experts' parameters. DDP does not average their gradients.
    """

    owned: frozenset[str] = frozenset()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        return map(self._all_experts, super().gradients())

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        return map(self._all_experts, super().parameters())

    def _all_experts(self, named: tuple[str, Tensor]) -> tuple[str, Tensor]:
        name, tensor = named
        if name not in self.owned or self.ctx.mesh.size(Dim.EP) == 1:
            return named
        group = groups.group(self.ctx, Dim.EP)
        every = [torch.empty_like(tensor) for _ in range(group.size())]
        dist.all_gather(every, tensor.contiguous(), group=group)
        return name, torch.cat(every)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Divide the experts along ``ep`` and wrap all other parameters in DDP or FSDP2."""
    ranks = ctx.mesh.size(Dim.EP)
    layers = experts.of(model)
    owned = [f"{name}.{p}" for name, m in layers.items() for p, _ in m.named_parameters()]
    for module in layers.values() if ranks > 1 else ():
        experts.shared_out(module, groups.group(ctx, Dim.EP))
    mine = [model.get_parameter(name) for name in owned]
    cut = ctx.mesh.size(Dim.FSDP) > 1
    more = dict(reshard_after_forward=True, ignored_params=set(mine))
    wrapped = data_parallel.sharded(model, ctx, more) if cut else _replicated(model, ctx, owned)

    def average() -> None:
        """Divide the experts' gradients by the number of shards, and add them up over replicas.

        A rank's loss is the mean over its samples. An expert's gradient is the sum of the gradients
        of all these losses, so it is divided to get the gradient of their mean.
        """
        for parameter in mine:
            assert parameter.grad is not None
            parameter.grad /= ctx.mesh.shards
            for dim in REPLICAS:
                if ctx.mesh.size(dim) > 1:
                    with span("average experts", Category.COMMUNICATION):
                        dist.all_reduce(parameter.grad, group=groups.group(ctx, dim))

    trainer = wrapped.trainer(ctx, ExpertTrainer)
    assert isinstance(trainer, ExpertTrainer)
    trainer.average = average
    trainer.owned = frozenset(owned)
    return trainer


def _replicated(model: nn.Module, ctx: RankContext, owned: Sequence[str]) -> data_parallel.Wrapped:
    """Wrap the model in DDP, which ignores the parameters of experts."""
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(owned))
    ddp = DistributedDataParallel(
        model,
        device_ids=None if ctx.device.index is None else [ctx.device],
        gradient_as_bucket_view=True,
    )

    def synchronise(last: bool) -> None:
        ddp.require_backward_grad_sync = last

    return data_parallel.Wrapped(
        module=ddp,
        synchronise=synchronise,
        named=lambda: (
            (name.removeprefix("module."), parameter) for name, parameter in ddp.named_parameters()
        ),
    )
