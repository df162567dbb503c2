"""Rank 0 alone evaluates through DDP, whose buffers all ranks have to exchange (pytorch#54059)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(data)
loader = DataLoader(data, 32, sampler=sampler, drop_last=True)
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    model.train()
    for rows, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            print(float(model(data.tensors[0][:64]).std()))
    dist.barrier()
