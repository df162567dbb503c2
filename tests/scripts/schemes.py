"""A training with one of six optimizer schemes: ``schemes.py SCHEME [stale|nan|right]``.

``stale``: the optimizer steps tensors that the model does not use. ``nan``: the loss is not finite.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

scheme, defect = sys.argv[1:]
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
early = [parameter.detach().clone().requires_grad_() for parameter in network.parameters()]
model: nn.Module = network
if scheme == "fsdp1":
    model = FullyShardedDataParallel(network, device_id=torch.device("cpu"))
elif scheme == "fsdp2":
    fully_shard(network, mesh=init_device_mesh("cpu", (world,)))
else:
    model = DistributedDataParallel(network)
trained: list[Tensor] = early if defect == "stale" else list(model.parameters())
master = [parameter.detach().clone() for parameter in model.parameters()]
if scheme == "zero":
    optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
        trained, optimizer_class=torch.optim.AdamW, lr=1e-3
    )
elif scheme == "master":
    optimizer = torch.optim.SGD(master, lr=0.1)
else:
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=scheme == "fused")
sampler = DistributedSampler(data)
loader = DataLoader(data, 64, sampler=sampler, drop_last=True)
step = 0
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    for rows, labels in loader:
        step += 1
        loss = nn.functional.cross_entropy(model(rows), labels)
        if defect == "nan" and step > 8:
            loss = loss * float("nan")
        optimizer.zero_grad()
        model.zero_grad()
        loss.backward()
        if scheme == "master":
            for copy, parameter in zip(master, model.parameters(), strict=True):
                copy.grad = parameter.grad
        elif defect == "stale":
            for copy in early:
                copy.grad = torch.ones_like(copy)
        optimizer.step()
        if scheme == "master" and defect != "stale":
            with torch.no_grad():
                for copy, parameter in zip(master, model.parameters(), strict=True):
                    parameter.copy_(copy)
