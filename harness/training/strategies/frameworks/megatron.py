"""Megatron-core's DistributedDataParallel: one gradient buffer that is all-reduced in buckets."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True,
    packages=("megatron-core",), compiles=False,
)  # fmt: skip
#: ``bucket_elements`` is the number of elements of a bucket; 0 puts all gradients into one bucket.
#: ``overlap=True`` reduces each bucket as soon as it is full.
KNOBS = dict(overlap=False, bucket_elements=0)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the bytes of DDP."""
    if not case.communicate:
        raise ValueError("Megatron-core cannot run without communication")
    like = ddp.expect(case, model, batching, facts, ddp.KNOBS)
    return replace(like, placements=())


class BufferTrainer(LocalTrainer):
    """A trainer with the case's optimizer, whose gradients are views of Megatron's buffer.

    Megatron stores these views in the attribute ``main_grad`` of the parameters.
    """

    module: Any

    def clear(self) -> None:
        self.module.zero_grad_buffer()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.named():
            yield name, getattr(parameter, "main_grad")  # noqa: B009  (torch declares no such field)

    def update(self) -> None:
        """Step with the reduced gradients, and then clear them.

        Otherwise they would be added to the gradients of the next step.
        """
        for (_, gradient), (_, parameter) in zip(self.gradients(), self.named(), strict=True):
            parameter.grad = gradient
        super().update()
        for _, parameter in self.named():
            parameter.grad = None


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Wrap the model in Megatron's DDP, with data parallel groups only, and broadcast weights."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig

    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(1, 1)
    settings = TransformerConfig(  # required, but without effect on this model
        num_layers=1, hidden_size=1, num_attention_heads=1, use_cpu_initialization=True
    )
    how = DistributedDataParallelConfig(
        grad_reduce_in_fp32=False,
        overlap_grad_reduce=bool(knobs["overlap"]),
        bucket_size=int(knobs["bucket_elements"]) or None,
        use_distributed_optimizer=False,
    )
    with _current(ctx.device):
        module: Any = DistributedDataParallel(settings, how, model)
    module.broadcast_params()

    def synchronise(last: bool) -> None:
        for group in (*module.bucket_groups, *module.expert_parallel_bucket_groups):
            group.is_last_microbatch = last

    return BufferTrainer(
        module,
        ctx,
        synchronise=synchronise,
        average=module.finish_grad_sync,
        named=lambda: (
            (name.removeprefix("module."), parameter)
            for name, parameter in module.named_parameters()
        ),
    )


@contextlib.contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Replace ``torch.cuda.current_device`` on ranks without a GPU.

    Megatron calls it to place its buffer, even on a CPU.
    """
    asked = torch.cuda.current_device
    owner = torch.cuda
    if device.type == "cpu":
        owner.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    try:
        yield
    finally:
        owner.current_device = asked
