"""What one process can say of a device: forks of it, a bare loop on it, its recorder's words."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from harness.launch.engine import RANK_ENV
from harness.spec import CaseSpec, Catalogue, Device
from harness.training.accelerator import Accelerator
from harness.training.context import build_model, load, make_batch
from harness.training.describe import case_batching
from harness.training.observe import issued

_FORKS = """
import json, os, sys, time
from harness.training.agent import agent
from harness.training.accelerator import driver_started
agent.preload()
threads = os.listdir("/proc/self/task")
clean = len(threads) == 1 and not driver_started()
children = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        import torch
        a = torch.randn(1024, 1024, device=sys.argv[1])
        (a @ a).sum().item()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    children.append({"code": code, "s": time.perf_counter() - began})
print(json.dumps({"clean": clean, "threads": len(threads), "children": children}))
"""


def forks(device: Device, count: int) -> dict[str, Any]:
    """Children of a process that has imported what an agent imports: each starts the device."""
    command = [sys.executable, "-c", _FORKS, str(device), str(count)]
    as_agents = {**os.environ, **RANK_ENV}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=as_agents)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def bare_loop(known: Catalogue, case: CaseSpec, steps: int) -> float:
    """The median step of a plain loop, in s: its own optimizer, nothing noted, nothing checked."""
    loaded = load(known.files(case))
    device = torch.device("cpu" if case.device is Device.CPU else "cuda:0")
    accelerator = Accelerator(device)
    if accelerator.present:
        accelerator.select()
    with device:
        model = build_model(loaded, case, case.seed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=accelerator.present)
    micro = case_batching(loaded, case).largest
    batch = make_batch(loaded, case, torch.arange(micro), device)
    events, marks = accelerator.events(steps + 1), [time.perf_counter()]
    accelerator.synchronize()
    for i in range(steps):
        if events:
            events[i].record()
        optimizer.zero_grad(set_to_none=True)
        loaded.model.loss(model(batch.inputs), batch.targets).backward()
        optimizer.step()
        marks.append(time.perf_counter())
    if not events:
        return median(b - a for a, b in itertools.pairwise(marks[steps // 3 :]))
    events[steps].record()
    accelerator.synchronize()
    spans = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]
    return median(spans[steps // 3 :])


def busy(device: Device, seconds: float) -> None:
    """Products of large matrices, for so long."""
    matrix = torch.randn(1024 if device is Device.CPU else 8192, device=str(device)).expand(
        1024, -1
    )
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        float((matrix @ matrix.T).sum())


def recorded(backend: str, device: Device) -> list[dict[str, Any]]:
    """The flight recorder's entries of every collective in a world of one."""
    issued.enable(issued.COUNTED)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        a = torch.ones(1024, device=str(device))
        dist.all_reduce(a)
        dist.broadcast(a, 0)
        dist.all_gather_into_tensor(torch.empty_like(a), a)
        if backend == "nccl":
            dist.reduce_scatter_tensor(torch.empty_like(a), a)
            dist.all_to_all_single(torch.empty_like(a), a)
        dist.barrier()
        found = issued.entries(backend)
        dist.destroy_process_group()
    return found
