"""What codecs cost beside torch's own hooks, in one run: ms to encode and decode a bucket.

One rank and no wire: a hook's own work, of N = 1. Ratios are to torch's fp16 hook where both do the
same, to its PowerSGD where that is the method, and to a copy of the bucket for all others.

    python benchmarks/cost/codecs.py [--elements 4194304] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from harness.base import modules
from harness.spec import Catalogue
from harness.training.rank.invariants import Bucket

#: Timed calls; the best one counts, since others share the machine.
CALLS = 5


def best(call: Callable[[], object]) -> float:
    """Seconds of the fastest call; the first one, which allocates, is not timed."""
    call()
    found = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def rows(elements: int) -> list[dict[str, Any]]:
    """Every codec and torch's hooks, on one gradient."""
    width = 1024
    parameters = [nn.Parameter(torch.zeros(elements // width, width))]
    bucket, gradient = Bucket(parameters), torch.randn(elements)
    device = torch.device("cpu")
    context = SimpleNamespace(world_size=1, rank=0, case=SimpleNamespace(seed=0), device=device)
    out = [{"codec": "a copy", "of": "", "ms": 1e3 * best(lambda: bucket.fill(gradient))}]
    power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    theirs: dict[str, Callable[[], object]] = {
        "fp16": lambda: default_hooks.fp16_compress_hook(None, bucket.fill(gradient)).wait(),
        "powersgd": lambda: powerSGD_hook.powerSGD_hook(power, bucket.fill(gradient)).wait(),
    }
    for name, call in theirs.items():
        for _ in range(3):
            call()  # PowerSGD sends dense at first
        out.append({"codec": name, "of": "torch", "ms": 1e3 * best(call)})
    for name, entry in Catalogue().entries["compressors"].items():
        if not entry.head.get("CONTROL"):
            hook = modules.load(f"harness.training.compressors.{name}").build(context, entry.knobs)
            call = lambda hook=hook: hook(bucket.fill(gradient)).wait()  # noqa: E731
            out.append({"codec": name, "of": "", "ms": 1e3 * best(call)})
    copied = {r["codec"]: r["ms"] for r in out if r["of"] == "torch"}
    for row in out:
        row["ratio"] = row["ms"] / copied.get(row["codec"], out[0]["ms"])
        row["beside"] = "torch's" if row["codec"] in copied else "a copy"
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = rows(asked.elements)
    if asked.json:
        print(json.dumps(found))
        return
    for row in found:
        name = f"{row['codec']} ({row['of']})" if row["of"] else row["codec"]
        print(f" {name:18}{row['ms']:9.2f} ms {row['ratio']:8.2f}x of {row['beside']}")


if __name__ == "__main__":
    main()
