"""FSDP2 whose weights are used before the optimizer is made (pytorch#149205); ``right``: after it."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

right = sys.argv[1:] == ["right"]
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 256), torch.randint(0, 10, (2048,)))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters()) if right else None
with torch.no_grad():
    print(float(model(data.tensors[0][:64]).std()))
optimizer = optimizer or torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(data)
loader = DataLoader(data, 64, sampler=sampler, drop_last=True)
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    for rows, labels in loader:
        model.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
