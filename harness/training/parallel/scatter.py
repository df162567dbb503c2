"""A reduce-scatter over all-to-all: where a backend's own one sends as much as an all-reduce."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter


class OverAllToAll(DefaultReduceScatter):
    """Every rank is sent the parts that are its own, and adds them in rank order."""

    def __call__(  # type: ignore[override]  # nothing is left to wait for
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType, async_op: bool = False,
    ) -> None:  # fmt: skip
        """(N-1)/N of the input is sent. FSDP waits for the tensors, so ``async_op`` has no say."""
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        mine, *others = parts.view(group.size(), -1)
        output_tensor.copy_(mine)
        for other in others:
            output_tensor.add_(other)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())
