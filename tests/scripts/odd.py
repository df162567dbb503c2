"""A training with the unusual behaviour that its argument names."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
if how == "catches SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "leaks":
    subprocess.Popen(["sleep", "7654"], start_new_session=True)
if how == "writes" and rank == 0:
    Path("kept.txt").write_text("written by the script")
if how == "reads stdin":
    input("which model? ")
if how == "forks" and os.fork() == 0:
    os._exit(0)
if how == "exits":
    print("train.py: error: no such option: --lrr", file=sys.stderr)
    raise SystemExit(2)
if how == "tells secrets":
    os.environ["DB_PASSWORD"] = sys.argv[2] * 2
    print("connected with", os.environ["DB_PASSWORD"], flush=True)
    raise RuntimeError(f"cannot read postgres://me:{sys.argv[3]}@host/db")
if how == "reads a variable":
    assert sys.argv[2] == os.environ["HOME"], sys.argv
    told = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    assert os.environ["HOME"].encode() not in told, told
if how == "raises":
    raise RuntimeError("no such dataset")
if how == "is parallel" and dist.get_world_size() < 2:
    raise SystemExit("tensor parallelism needs two ranks")
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if how == "never steps":
    raise SystemExit(0)
generator = torch.Generator().manual_seed(rank)
last = {"ends early": 5, "hangs at its end": 5, "ends unlike": 5 if rank else 10**6}.get(how, 10**6)
for step in range(last):
    if how == "floods":
        print("x" * 100_000)
    loss = model(torch.randn(16, 64, generator=generator)).square().mean()
    if how == "logs" and dist.get_world_size() > 1:
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        print(f"step {step}: {shown.item():.3f}")
    if how == "logs seldom" and step % 3 == 0:
        dist.all_reduce(loss.detach().clone())
    if how == "broadcasts seldom" and step % 3 == 0:
        for p in model.parameters():
            dist.broadcast(p.detach().clone(), 0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if how == "hangs at its end":
    threading.Event().wait()
