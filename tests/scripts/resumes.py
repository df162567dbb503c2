"""A training that saves a checkpoint every few steps and resumes from it, correctly or not."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY = 4
FILE = Path("last.pt")

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
first, epoch = 0, 0
if FILE.exists() and how != "forgets":
    kept = torch.load(FILE)
    plain.load_state_dict(kept["model"])
    if how != "weights only":
        optimizer.load_state_dict(kept["optimizer"])
    if how == "rounds":
        with torch.no_grad():
            for p in plain.parameters():
                p.copy_(p.bfloat16())
    first, epoch = kept["step"], how == "reshuffles"
model = DistributedDataParallel(plain)
for step in range(first, 12 if "--short" in sys.argv else 10**6):
    generator = torch.Generator().manual_seed(1000 * step + rank + 10**6 * epoch)
    x = torch.randn(16, 64, generator=generator)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step + 1) % EVERY == 0:
        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"step": step + 1}, "new.pt")
        Path("new.pt").replace(FILE)
