"""A training that measures itself several times, and prints the results as one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import harness

parser = argparse.ArgumentParser()
parser.add_argument("--results", default="results")
parser.add_argument("--times", type=int, default=1)
parser.add_argument("--short", action="store_true", help="ends before its window is over, too")
parser.add_argument("--breaks", action="store_true", help="breaks before, and after, it is over")
parser.add_argument("--fails", type=int, default=-1, help="a rank that never begins")
asked = parser.parse_args()
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
if dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
generator = torch.Generator().manual_seed(rank)


def train(steps: int) -> None:
    for _ in range(steps):
        loss = model(torch.randn(8, 16, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measured(steps: int, breaks: bool = False) -> str:
    recording: Any = None
    try:
        with harness.measure_steps(steps=12, warm_up=4, results=asked.results) as recording:
            train(steps)
            if breaks:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return str(recording.run)


before = torch.autograd.backward, torch.Tensor.item, torch.optim.Optimizer.__init__
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    if rank == asked.fails:
        train(30)
        runs = []
    else:
        runs = [measured(30) for _ in range(asked.times)]
        runs += [measured(6)] if asked.short else []
        runs += [measured(6, breaks=True), measured(30, breaks=True)] if asked.breaks else []
after = torch.autograd.backward, torch.Tensor.item, torch.optim.Optimizer.__init__
hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
said = [str(w.message) for w in seen if "autograd" not in str(w.message)]
if rank == 0:
    alike = before == after and not hooks
    print(json.dumps({"runs": runs, "said": said, "as_before": alike}), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
