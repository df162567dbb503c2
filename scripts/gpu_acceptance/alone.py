"""Measurements that each need a separate process on the device.

A process that has used a device cannot fork ranks, and it holds device memory until it ends.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from harness.base.documents import from_doc, to_doc
from harness.cases import CaseSpec, Catalogue
from harness.launch.engine import RANK_ENV
from harness.training.accelerator import Accelerator, numbered
from harness.training.context import CAST, build_model, load, make_batch
from harness.training.describe import case_batching
from harness.training.observe import collectives as issued
from harness.training.tuning import kernels

_FORKS = """
import json, os, sys, time
from harness.training.agent import agent
from harness.training.accelerator import driver_started, numbered
agent.preload()
threads = os.listdir("/proc/self/task")
clean = len(threads) == 1 and not driver_started()
children = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        import torch
        a = torch.randn(1024, 1024, device=numbered(0))
        (a @ a).sum().item()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    children.append({"code": code, "s": time.perf_counter() - began})
print(json.dumps({"clean": clean, "threads": len(threads), "children": children,
                  "driver_after": driver_started()}))
"""


def forks(count: int) -> dict[str, Any]:
    """Fork children that start the device from a process with the imports of an agent.

    Return their exit codes and durations, and whether the parent stayed free of threads and driver.
    """
    command = [sys.executable, "-c", _FORKS, str(count)]
    as_agents = {**os.environ, **RANK_ENV}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=as_agents)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _apart(question: str, **given: Any) -> Any:
    """Return the result of one of the functions below, which runs in a separate process."""
    command = [sys.executable, str(Path(__file__)), question, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"{question}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def bare_loop(known: Catalogue, case: CaseSpec, steps: int) -> float:
    """Return the median step time (s) of a plain training loop without any code of scaleproof."""
    return float(_apart("loop", case=to_doc(case), files=dict(known.files(case)), steps=steps))


def loops_of_one(known: Catalogue, case: CaseSpec, steps: int, times: int) -> list[float]:
    """Return the median step time (s) of each of several training loops in one process.

    The loops use the same device context, kernels and compiled code. Model, optimizer and memory
    are created anew for each.
    """
    files = dict(known.files(case))
    return [
        float(s) for s in _apart("kept", case=to_doc(case), files=files, steps=steps, times=times)
    ]


def cached_graphs(known: Catalogue, case: CaseSpec) -> dict[str, dict[str, int]]:
    """Return hits and misses of Inductor's cache for a plain model, then for each wrapper."""
    return dict(_apart("cached", case=to_doc(case), files=dict(known.files(case))))


def recorded(*, p2p: bool) -> dict[str, Any]:
    """Issue collectives in a world of one rank; return them, and what scaleproof recorded."""
    return dict(_apart("collectives", p2p=p2p))


def product_of_ones(rows: int) -> float:
    """Return the FLOP/s of a product of two matrices of ones, the best of five.

    Matrices of ones need less power than random data, so clocks stay higher.
    """
    return float(_apart("ones", rows=rows))


def attention(repeatable: bool) -> str:
    """Return the attention kernel in bf16, with or without the setting for repeatable bits."""
    return str(_apart("attended", repeatable=repeatable))


def loop(case: dict[str, Any], files: dict[str, str], steps: int) -> float:
    asked = from_doc(CaseSpec, case)
    loaded, device = load(files), numbered(0)
    accelerator = Accelerator(device)
    accelerator.select()
    with device:
        model = build_model(loaded, asked, asked.seed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    micro = case_batching(loaded, asked).largest
    batch = make_batch(loaded, asked, torch.arange(micro), device)
    marks = accelerator.events(steps + 1)
    accelerator.synchronize()
    dtype = CAST.get(asked.precision)
    for mark in marks[:-1]:
        mark.record()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = loaded.model.loss(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
    marks[-1].record()
    accelerator.synchronize()
    spans = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]
    return median(spans[steps // 3 :])


def kept(case: dict[str, Any], files: dict[str, str], steps: int, times: int) -> list[float]:
    medians = []
    for _ in range(times):
        medians.append(loop(case, files, steps))
        gc.collect()
        torch.accelerator.empty_cache()
    return medians


def cached(case: dict[str, Any], files: dict[str, str]) -> dict[str, dict[str, int]]:
    """Run each wrapper in a fresh process; all of them use one cache on disk."""
    counted = {}
    with tempfile.TemporaryDirectory() as cache:
        for wrapper in ("plain", "ddp", "fsdp"):
            given = json.dumps({"case": case, "files": files, "wrapper": wrapper})
            done = subprocess.run(
                [sys.executable, __file__, "graphs", given],
                capture_output=True, text=True, check=True,
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            )  # fmt: skip
            counted[wrapper] = json.loads(done.stdout.splitlines()[-1])
    return counted


def graphs(case: dict[str, Any], files: dict[str, str], wrapper: str) -> dict[str, int]:
    asked = from_doc(CaseSpec, case)
    loaded, device = load(files), numbered(0)
    Accelerator(device).select()
    with device:
        model = build_model(loaded, asked, asked.seed)
    for block in model:
        block.compile()
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
        trained: Any = model
        if wrapper == "ddp":
            trained = torch.nn.parallel.DistributedDataParallel(model)
        elif wrapper == "fsdp":
            for block in model:
                fully_shard(block)
            fully_shard(model)
        batch = make_batch(loaded, asked, torch.arange(2), device)
        loaded.model.loss(trained(batch.inputs), batch.targets).backward()
        dist.destroy_process_group()
    seen = torch._dynamo.utils.counters["inductor"]
    return {name: seen[f"fxgraph_cache_{name}"] for name in ("hit", "miss")}


def collectives(p2p: bool) -> dict[str, Any]:
    issued.enable(issued.COUNTED)
    device = numbered(0)
    Accelerator(device).select()
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group(
            "nccl", store=store, rank=0, world_size=1, device_id=device,
            timeout=timedelta(seconds=30),
        )  # fmt: skip
        a = torch.ones(1024, device=device)
        dist.all_reduce(a)
        begun = issued.mark("nccl")
        dist.all_reduce(a)
        dist.broadcast(a, 0)
        dist.all_gather_into_tensor(torch.empty_like(a), a)
        dist.reduce_scatter_tensor(torch.empty_like(a), a)
        names = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
        wanted = dict.fromkeys(names, (1, a.nbytes))
        if p2p:
            ops = [dist.P2POp(dist.isend, a, 0), dist.P2POp(dist.irecv, torch.empty_like(a), 0)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        Accelerator(device).synchronize()
        seen = issued.since(begun, "nccl")
        backend = dist.get_backend()
        entries = issued.entries("nccl")
        dist.destroy_process_group()
    return {
        "backend": backend, "wanted": wanted, "entries": entries,
        "issued": {name: (i.count, i.payload_bytes) for name, i in seen.items()},
    }  # fmt: skip


def ones(rows: int) -> float:
    accelerator = Accelerator(device := numbered(0))
    a = torch.ones(rows, rows, device=device, dtype=torch.bfloat16)
    spans = []
    for _ in range(6):
        accelerator.synchronize()
        began = time.perf_counter()
        torch.mm(a, a)
        accelerator.synchronize()
        spans.append(time.perf_counter() - began)
    return 2 * rows**3 / min(spans[1:])


def attended(repeatable: bool) -> str:
    accelerator = Accelerator(device := numbered(0))
    if repeatable:
        accelerator.repeatable()
    shape = (2, 4, 256, 64)
    q = torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_()

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

    return kernels.attention_of(kernels.operators(accelerator, step))


QUESTIONS: dict[str, Callable[..., Any]] = {
    "loop": loop, "collectives": collectives, "ones": ones, "attended": attended, "kept": kept,
    "cached": cached, "graphs": graphs,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(QUESTIONS[sys.argv[1]](**json.loads(sys.argv[2])), default=str))
