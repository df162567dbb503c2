"""A tutorial's training: one linear layer, and a hard-coded rendezvous address."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["MASTER_ADDR"] = "10.57.23.164"  # an unreachable machine
dist.init_process_group("gloo", sys.argv[1], rank=rank, world_size=world_size)
model = nn.parallel.DistributedDataParallel(nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.rand(512, 10), torch.rand(512, 1))
sampler = DistributedSampler(data)
for epoch in range(100):
    sampler.set_epoch(epoch)
    for rows, targets in DataLoader(data, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), targets).backward()
        optimizer.step()
