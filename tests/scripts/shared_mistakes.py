"""A training with a mistake on all ranks and at all world sizes; ``ddp right`` has none."""

from __future__ import annotations

import copy
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

mistake, right = sys.argv[1], sys.argv[2:] == ["right"]
dist.init_process_group("gloo")
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
model: nn.Module = plain
if mistake == "ddp":
    model = DistributedDataParallel(plain if right else copy.deepcopy(plain))
elif mistake == "fsdp1":
    model = FullyShardedDataParallel(plain, device_id=torch.device("cpu"), use_orig_params=False)
elif mistake == "fsdp2":
    model = fully_shard(plain, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
else:
    model = DistributedDataParallel(plain)
if right:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10**6):
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    rows = torch.randn(16, 64, generator=generator)
    nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True)).backward()
    optimizer.step()
    if mistake == "saves outside" and step == 4:
        torch.save(plain.state_dict(), sys.argv[2])
    if mistake == "exports outside" and step == 4:
        torch.jit.save(torch.jit.script(plain), sys.argv[2])
    if mistake == "child outside" and step == 4:
        subprocess.run([sys.executable, "-c", f"open({sys.argv[2]!r}, 'w')"], check=True)
