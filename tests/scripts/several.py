"""A training that creates a process group only for several ranks, which another file starts."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from starting import start
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(16, 4)
    if world_size > 1:
        dist.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:29578", rank=rank, world_size=world_size
        )
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(rank)
    data = TensorDataset(torch.randn(80_000, 16, generator=draw))
    for (x,) in DataLoader(data, 8, num_workers=1):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    start(train, int(sys.argv[1]))
