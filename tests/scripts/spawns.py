"""A training that spawns its ranks, as many tutorials do; the world size may be in a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def train(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29577"  # a fixed port
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(rows)
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    word = sys.argv[1]
    if word == "alone":  # as torchrun would start it, except for the port
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    elif word == "spawn":
        mp.spawn(train, args=(2,), nprocs=2)
    elif word == "processes":
        count = int((*sys.argv, "2")[2])
        ranks = [mp.Process(target=train, args=(rank, count)) for rank in range(count)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    else:
        file = Path(word)
        world_size = json.loads(file.read_text())["world"] if file.is_file() else int(word)
        mp.spawn(train, args=(world_size,), nprocs=world_size)
